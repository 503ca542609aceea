"""The built-in target names the planted bugs that there are, and hides no wrong read."""

from __future__ import annotations

import pickle

import pytest
import trio

from harness.errors import DefiniteError, IndefiniteError
from harness.plugins import Address
from harness.targets.dledger import PLUGIN
from harness.targets.dledger_client import NOBODYS_VALUE, DLedgerClient
from system import mutants
from system.client import DamagedResponseError, OutcomeUnknownError, PullResult, RefusedError
from system.store.message import Message


def test_the_targets_mutants_are_the_systems() -> None:
    assert tuple(sorted(PLUGIN.mutants)) == mutants.names()


def test_the_log_reader_can_be_sent_to_executors() -> None:
    assert pickle.loads(pickle.dumps(PLUGIN.read_log)) is not None


class Stub:
    answered_by = "n0"

    def __init__(self, answer: PullResult | Exception) -> None:
        self._answer = answer

    async def pull(self, *_: object, **__: object) -> PullResult:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def read(answer: PullResult | Exception) -> int | None:
    client = DLedgerClient({"n0": Address("127.0.0.1", 1)}, 1.0)
    client._client = Stub(answer)  # type: ignore[assignment]
    return trio.run(client.read, "t/0", 7)


def pulled(body: bytes, offset: int = 7) -> PullResult:
    return PullResult((Message(b"t", 0, offset, 0, body),), offset + 1, 0, 9)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (pulled(b"42"), 42),
        (PullResult((), 7, 0, 7), None),
        (pulled(b"42", offset=8), NOBODYS_VALUE),
        (pulled(b"not a number"), NOBODYS_VALUE),
        (pulled(b""), NOBODYS_VALUE),
        (DamagedResponseError("CRC"), NOBODYS_VALUE),
    ],
)
def test_what_was_read_stands_in_the_history(answer: PullResult, value: int | None) -> None:
    assert read(answer) == value


def test_refused_is_definite_and_silence_is_not() -> None:
    with pytest.raises(DefiniteError):
        read(RefusedError(14, "not the leader"))
    with pytest.raises(IndefiniteError):
        read(OutcomeUnknownError("no answer"))
