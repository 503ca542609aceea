"""The built-in target names the planted bugs that there are, and hides no wrong read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.targets import dledger
from shaketable.harness.targets.dledger import FOREIGN_VALUE, PLUGIN, DLedgerClient
from shaketable.system import mutants
from shaketable.system.client import (
    DamagedResponseError,
    OutcomeUnknownError,
    PullResult,
    RefusedError,
)
from shaketable.system.client.group import Metadata
from shaketable.system.store.message import Message


def test_the_targets_mutants_are_the_systems() -> None:
    mine = [bug.name for bug in mutants.catalogue() if "dledger" in bug.targets]
    assert list(PLUGIN.mutants) == mine


def test_the_log_reader_can_be_sent_to_executors() -> None:
    assert pickle.loads(pickle.dumps(PLUGIN.read_log)) is not None


def test_a_port_of_another_nodes_in_an_earlier_run_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Knows:
        def __init__(self, addresses: dict[str, tuple[str, int]], **_: object) -> None:
            self._members = set(addresses)

        async def metadata(self, member: str) -> Metadata:
            if member not in self._members:
                raise RefusedError(-1, f"no client address of {member} is known")
            return Metadata(member, "follower", 1, "n0", 5, 6)

        def close(self) -> None: ...

    monkeypatch.setattr(dledger, "BrokerGroupClient", Knows)
    at, target = Address("127.0.0.1", 1), dledger.DLedgerTarget()
    for node in ("n0", "n1"):
        layout = NodeLayout(node, tmp_path, at, at, {}, {})
        status = trio.run(target.status, layout, 1.0)
        assert status is not None
        assert status.end_index == 6


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
        (pulled(b"42", offset=8), FOREIGN_VALUE),
        (pulled(b"not a number"), FOREIGN_VALUE),
        (pulled(b""), FOREIGN_VALUE),
        (DamagedResponseError("CRC"), FOREIGN_VALUE),
    ],
)
def test_what_was_read_stands_in_the_history(answer: PullResult, value: int | None) -> None:
    assert read(answer) == value


def test_refused_is_definite_and_silence_is_not() -> None:
    with pytest.raises(DefiniteError):
        read(RefusedError(14, "not the leader"))
    with pytest.raises(IndefiniteError):
        read(OutcomeUnknownError("no answer"))
