import asyncio

DEFINITE = (ConnectionRefusedError,)


async def open(node):
    return await asyncio.open_connection(node.host, node.port)


async def close(session):
    session[1].close()


async def ask(session, *words):
    session[1].write(f"{' '.join(map(str, words))}\n".encode())
    answer = (await session[0].readline()).decode().strip()
    if not answer:
        raise ConnectionError("the server hung up")
    return None if answer == "nil" else answer


async def read(session, key):
    return await ask(session, "GET", key)


async def write(session, key, value):
    await ask(session, "SET", key, value)


async def cas(session, key, expected, value):
    return await ask(session, "CAS", key, "nil" if expected is None else expected, value) == "1"
