"""The files with which `shaketable new target` begins: a table, a client, a test. Pure."""

from __future__ import annotations

import json
import shlex
from typing import Final

from shaketable.harness.described.operations import WORKLOADS

START: Final = "./server --id {id} --listen {client} --peers {members} --data {data}"

_BODIES: Final = {
    "read": ("session, key", "Return the value of a key, a whole number; None if it has none."),
    "write": ("session, key, value", "Set the value of a key."),
    "cas": (
        "session, key, expected, value",
        "Set the value if the key has the expected one (None: none); return whether it had.",
    ),
    "append": ("session, key, value", "Append to the log of that key; return the offset."),
    "read_at": ("session, key, offset", "Return the value at an offset; None at the end."),
    "end": ("session, key", "Return the offset of the next append."),
    "add": ("session, key, value", "Add a whole number to the set of that key."),
    "elements": ("session, key", "Return all elements of the set, as they are now."),
    "increment": ("session, key, amount", "Add an amount to the counter of that key."),
    "count": ("session, key", "Return the value of the counter."),
    "enqueue": ("session, key, value", "Put a whole number into the queue of that key."),
    "dequeue": ("session, key", "Take a number out of the queue; None if it is empty."),
    "transact": (
        "session, steps",
        "Do the steps (docs/workloads.md) in one transaction; return them with what was read.",
    ),
    "transact_registers": (
        "session, steps",
        "Do the steps (docs/workloads.md) in one transaction; return them with what was read.",
    ),
    "transfer": (
        "session, source, destination, amount, opening",
        "Move an amount between accounts, which hold `opening` at first; False if one has less.",
    ),
    "balances": (
        "session, accounts, opening",
        "Return the balances of all these accounts, read in one transaction.",
    ),
}


def table(name: str, start: str, leader: str) -> str:
    """Return the target's table for `shaketable.toml`."""
    words = ", ".join(json.dumps(word) for word in shlex.split(start))
    asked = (
        f'\n[targets.{name}.leader]\nhttp = {json.dumps(leader)}\nleader = "leader"'
        "  # where it is in the JSON of the answer\n"
        if leader
        else ""
    )
    return f"""\
[targets.{name}]
summary = "Nodes of {name}."
start = [{words}]
client = "{client_file(name)}"
{asked}
[targets.{name}.promises]
durable_under = ["process", "network"]  # families of faults, or faults (list faults)
"""


def client(workload: str) -> str:
    """Return a client with the functions of a workload, to be filled in."""
    head = '''\
"""What clients do. Each function may be plain (def), or a coroutine of asyncio or trio.

An error means that it is unknown whether the operation happened, except in functions that only
read. List in DEFINITE the exceptions after which it certainly did not happen.
"""

DEFINITE = (ConnectionRefusedError,)


def open(node):
    """Return a session with a node: it has name, host, port and timeout_s."""
    raise NotImplementedError


def close(session):
    """Close a session; after an error it is not used any more."""
'''
    functions = (_function(name) for name in WORKLOADS[workload])
    return "\n\n".join((head, *functions))


def test(name: str) -> str:
    """Return a test for pytest that shakes the target for twenty seconds."""
    function = f"test_{name}_keeps_its_promises".replace("-", "_")
    return f'''\
"""Shakes {name} for twenty seconds: no acknowledged write may be lost, no read be stale."""


def {function}(shake):
    shake(target="{name}", time_limit="20s")
'''


def client_file(name: str) -> str:
    """Return the name of a target's client file."""
    return f"{name.replace('-', '_')}_client.py"


def test_file(name: str) -> str:
    """Return the name of a target's test."""
    return f"test_{name.replace('-', '_')}.py"


def _function(name: str) -> str:
    arguments, what = _BODIES[name]
    return f'def {name}({arguments}):\n    """{what}"""\n    raise NotImplementedError\n'
