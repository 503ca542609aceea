"""An answer of a member that does not lead proves nothing of a request that must be refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shaketable.harness.targets import refusals
from shaketable.system.client import RefusedError

LEADER, OTHER = "127.0.0.1:1", "127.0.0.1:2"
REQUEST = next(
    each
    for each in refusals.INVALID_REQUESTS
    if each.label.startswith("read a topic that may only")
)


def asker(status: str, answered_by: str) -> Any:
    async def create_topic(*_: object, **__: object) -> None:
        return None

    async def pull(*_: object) -> Any:
        return SimpleNamespace(status=status, messages=())

    return SimpleNamespace(
        producer=SimpleNamespace(create_topic=create_topic),
        consumer=SimpleNamespace(pull=pull, last_address=answered_by),
        topic="t",
        broker="b",
        leader=LEADER,
    )


def test_a_leader_that_serves_the_pull_did_what_it_must_refuse() -> None:
    code = trio.run(refusals.code_of, REQUEST, asker("NO_NEW_MSG", LEADER))
    assert code == refusals.TOOK_EFFECT


@pytest.mark.parametrize(
    ("status", "answered_by"), [("NO_MATCHED_MSG", LEADER), ("NO_NEW_MSG", OTHER)]
)
def test_who_does_not_lead_proves_nothing(status: str, answered_by: str) -> None:
    with pytest.raises(RefusedError):
        trio.run(refusals.code_of, REQUEST, asker(status, answered_by))
