from redis import asyncio as redis
from redis.exceptions import BusyLoadingError, ReadOnlyError

DEFINITE = (BusyLoadingError, ReadOnlyError)
CAS = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1"""


async def open(node):
    session = redis.Redis(host=node.host, port=node.port, retry=None)
    if (await session.role())[0] != b"master":
        await close(session)
        raise ConnectionError("a replica: its values may be old")
    return session


async def close(session):
    await session.aclose()


async def read(session, key):
    return await session.get(key)


async def write(session, key, value):
    await session.set(key, value)


async def cas(session, key, expected, value):
    return await session.eval(CAS, 1, key, "" if expected is None else expected, value) == 1
