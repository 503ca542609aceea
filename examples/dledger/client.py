from random import Random

import trio

from shaketable.system.client import BrokerGroupClient, RefusedError

DEFINITE = (RefusedError,)


async def open(node):
    await trio.lowlevel.checkpoint()
    nodes = {node.name: (node.host, node.port)}
    return BrokerGroupClient(nodes, timeout_s=node.timeout_s, rng=Random())


async def close(session):
    session.close()


def queue_of(key):
    topic, _, number = key.rpartition("/")
    return topic, int(number)


async def append(session, key, value):
    return (await session.send(*queue_of(key), str(value).encode())).queue_offset


async def read_at(session, key, offset):
    found = (await session.pull(*queue_of(key), offset, count_max=1)).messages
    return int(found[0].body) if found else None


async def end(session, key):
    return await session.max_offset(*queue_of(key))
