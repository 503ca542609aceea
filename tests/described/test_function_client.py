"""Clients that are functions: plain, of asyncio and of trio; what their errors mean."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shaketable.harness.contracts.clients import (
    BankClient,
    CounterClient,
    LogClient,
    QueueClient,
    ReadWriteClient,
    RegisterClient,
    RegisterTransactionClient,
    SetClient,
    TransactionClient,
)
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError, UsageError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import FunctionClient, client_type, load

NODES = {f"n{n}": Address("127.0.0.1", 7000 + n) for n in range(3)}
PLAIN = """
CALLS = []

class Refused(Exception): ...

DEFINITE = (Refused,)

def open(node):
    CALLS.append(f"open {node.name} {node}")
    return node.name

def close(session):
    CALLS.append(f"close {session}")

def read(session, key):
    if key == "broken":
        raise OSError("gone")
    return {"none": None, "text": b"12"}.get(key, 7)

def write(session, key, value):
    if key == "refused":
        raise Refused("full")
    if key == "mistake":
        raise NameError("naem")
    if key == "broken":
        raise OSError("reset")

def cas(session, key, expected, value):
    return key == "text" or "perhaps"
"""


def client_of(folder: Path, text: str, timeout_s: float = 5.0) -> tuple[Any, list[str]]:
    file = folder / "client.py"
    file.write_text(text)
    functions = load(file)
    calls = next((each.__globals__["CALLS"] for each in functions._functions.values()), [])
    return client_type(functions)(NODES, timeout_s), calls


def run(step: Callable[[], Awaitable[Any]]) -> Any:
    return trio.run(step)


def test_an_error_means_what_its_file_says_and_ends_the_session(tmp_path: Path) -> None:
    client, calls = client_of(tmp_path, PLAIN)

    async def main() -> None:
        assert await client.get("text") == 12
        assert await client.get("none") is None
        assert await client.swap("text", None, 1) is True
        first = client.node
        with pytest.raises(DefiniteError, match="Refused: full"):
            await client.put("refused", 1)
        await client.get("text")
        assert client.node != first, "the node that refuses may not be the leader"
        first = client.node
        with pytest.raises(DefiniteError, match="OSError: gone"):
            await client.get("broken")  # it changes nothing
        with pytest.raises(IndefiniteError, match="OSError: reset"):
            await client.put("broken", 1)
        assert client.node != first
        with pytest.raises(NameError):
            await client.put("mistake", 1)  # the log gets its traceback
        with pytest.raises(TypeError, match="cas returned 'perhaps'"):
            await client.swap("other", 1, 2)
        await client.aclose()

    run(main)
    opened = [call for call in calls if call.startswith("open")]
    assert len(opened) == 4 == len(calls) - len(opened), calls
    assert len(set(opened)) == 3, "the next session is at the next node"


def test_a_session_that_cannot_be_opened_is_definite(tmp_path: Path) -> None:
    client, _ = client_of(
        tmp_path, "CALLS = []\ndef open(node): raise OSError(node.name)\ndef write(s, k, v): ...\n"
    )

    async def main() -> list[str]:
        told = []
        for _ in range(3):
            with pytest.raises(DefiniteError) as error:
                await client.put("a", 1)
            told.append(str(error.value))
        return told

    assert len(set(run(main))) == 3


STYLES = {
    "plain": ("import time", "def", "time.sleep(30)"),
    "asyncio": ("import asyncio", "async def", "await asyncio.sleep(30)"),
    "trio": ("import trio", "async def", "await trio.sleep(30)"),
}


@pytest.mark.parametrize("style", STYLES)
def test_each_style_answers_and_is_given_up_in_time(tmp_path: Path, style: str) -> None:
    imported, define, waits = STYLES[style]
    text = (
        f"{imported}\nCALLS = []\n"
        f"{define} open(node): return node.port\n"
        f"{define} close(session): CALLS.append('close')\n"
        f"{define} read(session, key):\n    if key == 'slow': {waits}\n    return session\n"
        f"{define} write(session, key, value):\n    if key == 'slow': {waits}\n"
    )
    client, calls = client_of(tmp_path, text, 0.3)

    async def main() -> None:
        with trio.fail_after(20):
            assert await client.get("fast") in {7000, 7001, 7002}
            with pytest.raises(DefiniteError, match=r"no answer within 0\.3 s"):
                await client.get("slow")
            with pytest.raises(IndefiniteError, match=r"no answer within 0\.3 s"):
                await client.put("slow", 1)

    run(main)
    assert calls == ["close", "close"]


def test_what_an_asyncio_call_raises_once_it_was_given_up_is_no_error_of_asyncio(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        "import asyncio\nCALLS = []\n"
        "async def read(node, key):\n"
        "    try: await asyncio.sleep(30)\n"
        "    finally:\n        CALLS.append('ended')\n        raise ConnectionError('closed')\n"
    )
    client, calls = client_of(tmp_path, text, 0.1)

    async def main() -> None:
        with trio.fail_after(20):
            with pytest.raises(DefiniteError, match="no answer within"):
                await client.get("slow")
            while not calls:
                await trio.sleep(0.01)
            await trio.sleep(0.05)

    run(main)
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_a_call_that_its_library_cancels_has_an_unknown_outcome(tmp_path: Path) -> None:
    text = (
        "import asyncio\nCALLS = []\n"
        "async def write(node, key, value):\n"
        "    answer = asyncio.get_running_loop().create_future()\n"
        "    answer.cancel()\n    await answer\n"
    )
    client, _ = client_of(tmp_path, text, 5.0)

    async def main() -> None:
        with pytest.raises(IndefiniteError, match="CancelledError"):
            await client.put("a", 1)

    run(main)


@pytest.mark.parametrize(
    ("functions", "has", "lacks"),
    [
        ("read write cas", (RegisterClient, ReadWriteClient), (LogClient, SetClient)),
        ("read write", (ReadWriteClient,), (RegisterClient,)),
        ("append read_at end", (LogClient,), (ReadWriteClient,)),
        ("add elements", (SetClient,), (CounterClient,)),
        ("increment count", (CounterClient,), (SetClient,)),
        ("enqueue dequeue", (QueueClient,), (LogClient,)),
    ],
)
def test_a_client_is_what_its_functions_serve(
    tmp_path: Path, functions: str, has: tuple[type, ...], lacks: tuple[type, ...]
) -> None:
    text = "".join(f"def {name}(*arguments): return [3]\n" for name in functions.split())
    (tmp_path / "c.py").write_text(text)
    made = client_type(load(tmp_path / "c.py"))
    assert issubclass(made, FunctionClient)
    assert all(issubclass(made, each) for each in has)
    assert not any(issubclass(made, each) for each in lacks)


def test_sets_and_counters(tmp_path: Path) -> None:
    text = (
        "CALLS = []\n"
        "def add(node, key, value): CALLS.append(value)\n"
        "def elements(node, key): return {'text': 'ab'}.get(key, [str(v) for v in CALLS])\n"
        "def increment(node, key, amount): ...\n"
        "def count(node, key): return None\n"
    )
    client, _ = client_of(tmp_path, text)

    async def main() -> None:
        await client.add("k", 3)
        assert await client.elements("k") == [3]
        await client.increment("k", 1)
        assert await client.count("k") == 0
        with pytest.raises(TypeError, match="no collection"):
            await client.elements("text")

    run(main)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("def get(session, key): ...\n", "has none of the functions read"),
        ("def read(key): ...\n", r"read is called with 2 arguments: read\(session, key\)"),
        ("def cas(s, k, v): ...\n", r"cas\(session, key, expected, value\)"),
        ("read = 3\n", "read is 3, no function"),
        ("def read(s, k): ...\nDEFINITE = 'OSError'\n", "DEFINITE holds 'OSError'"),
        ("def read(s, k): ...\nDEFINITE = (int,)\n", "no exception class"),
    ],
)
def test_one_line_says_what_is_wrong_with_a_file(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "c.py").write_text(text)
    with pytest.raises(UsageError, match=told):
        load(tmp_path / "c.py")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no client file"):
        load(tmp_path / "c.py")


TRANSACTIONS = """
CALLS = []
ANSWERS = {}

def transact(session, steps):
    CALLS.append(steps)
    answer = ANSWERS.get("next", steps)
    if isinstance(answer, Exception):
        raise answer
    return [(f, key, ["3", b"4"] if f == "r" else value) for f, key, value in answer]
"""
STEPS = (("append", "k", 3), ("r", "k", None))


def test_a_transaction_has_the_steps_of_its_clients_with_keys_of_the_run(tmp_path: Path) -> None:
    client, calls = client_of(tmp_path, TRANSACTIONS)
    assert isinstance(client, TransactionClient)
    client.key_prefix = "run-7/"
    assert run(lambda: client.transact(STEPS)) == [("append", "k", 3), ("r", "k", [3, 4])]
    assert calls == [[["append", "run-7/k", 3], ["r", "run-7/k", None]]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "returned [], not its 2 steps"),
        ("ab", "returned 'ab', not its 2 steps"),
        ([("append", "k", 3), ("r", "other", [1])], "returned ('r', 'other', [1]) for ['r', 'k', "),
        ([("append", "k", 3), ("r", "k", "12")], "returned '12' for a read, no list"),
        ([("append", "k", 3), ("r", "k", ["x"])], "returned 'x', no whole number"),
        ([("append", "k", 3), 7], "returned 7 for ['r', 'k', None]"),
    ],
)
def test_an_answer_that_is_not_to_the_steps_is_a_mistake_of_the_file(
    tmp_path: Path, given: object, said: str
) -> None:
    text = f"CALLS = []\ndef transact(session, steps): return {given!r}\n"
    client, _ = client_of(tmp_path, text)
    with pytest.raises(TypeError) as told:
        run(lambda: client.transact(STEPS))
    assert said in str(told.value)


@pytest.mark.parametrize(("steps", "error"), [(STEPS, IndefiniteError), (STEPS[1:], DefiniteError)])
def test_a_transaction_that_only_reads_certainly_changed_nothing(
    tmp_path: Path, steps: Any, error: type[Exception]
) -> None:
    text = "CALLS = []\ndef transact(session, steps): raise OSError('gone')\n"
    client, _ = client_of(tmp_path, text)
    with pytest.raises(error):
        run(lambda: client.transact(steps))


def test_a_list_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    text = "CALLS = []\ndef transact(session, steps): return steps\n"
    client, _ = client_of(tmp_path, text)
    assert run(lambda: client.transact(STEPS)) == [("append", "k", 3), ("r", "k", [])]


REGISTERS = """
CALLS = []

def transact_registers(session, steps):
    CALLS.append(steps)
    return [[f, key, value if f == "w" else "7"] for f, key, value in steps]

def transfer(session, source, destination, amount, opening):
    CALLS.append([source, destination, amount, opening])
    if amount == 13:
        raise OSError("gone")
    return {5: True, 6: False}.get(amount)

def balances(session, accounts, opening):
    CALLS.append([accounts, opening])
    return [str(opening)] * (len(accounts) if opening else 1)
"""


def test_a_transaction_over_registers_reads_values(tmp_path: Path) -> None:
    client, calls = client_of(tmp_path, REGISTERS)
    assert isinstance(client, RegisterTransactionClient)
    assert not isinstance(client, TransactionClient)
    client.key_prefix = "run-7/"
    steps = (("r", "k", None), ("w", "k", 3))
    assert run(lambda: client.transact_registers(steps)) == [("r", "k", 7), ("w", "k", 3)]
    assert calls == [[["r", "run-7/k", None], ["w", "run-7/k", 3]]]


def test_a_transfer_says_whether_it_was_done(tmp_path: Path) -> None:
    client, calls = client_of(tmp_path, REGISTERS)
    assert isinstance(client, BankClient)
    client.key_prefix = "run-7/"
    assert run(lambda: client.transfer("a", "b", 5, 100)) is None
    assert calls == [["run-7/a", "run-7/b", 5, 100]]
    with pytest.raises(DefiniteError, match="refused"):
        run(lambda: client.transfer("a", "b", 6, 100))
    with pytest.raises(TypeError, match="transfer returned None, not whether it took effect"):
        run(lambda: client.transfer("a", "b", 7, 100))
    with pytest.raises(IndefiniteError):
        run(lambda: client.transfer("a", "b", 13, 100))


def test_balances_come_in_the_order_of_accounts(tmp_path: Path) -> None:
    client, calls = client_of(tmp_path, REGISTERS)
    client.key_prefix = "run-7/"
    assert run(lambda: client.balances(["a", "b"], 100)) == [100, 100]
    assert calls == [[["run-7/a", "run-7/b"], 100]]
    with pytest.raises(TypeError, match="not those of 2 accounts"):
        run(lambda: client.balances(["a", "b"], 0))
