"""Requests to a group that are repeated until they succeed: transfers, membership changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from shaketable.harness.contracts.abilities import ChangesMembers
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Json, NodeLayout, NodeStatus
from shaketable.harness.runtime.group_status import STATUS_INTERVAL_S, GroupStatus

TRANSFER_TIMEOUT_S = 3.0
"""How long to wait for a leadership transfer."""
TRANSFER_POLL_S = 0.01
MEMBERS_TIMEOUT_S = 8.0
"""How long to wait for a membership change: less than a fault may take to start."""


async def wait_until(
    is_so: Callable[[], bool], timeout_s: float, interval_s: float = STATUS_INTERVAL_S / 2
) -> bool:
    """Poll until `is_so()`; False if it is not within `timeout_s`. Its exceptions propagate."""
    deadline = trio.current_time() + timeout_s
    while not is_so():
        if trio.current_time() >= deadline:
            return False
        await trio.sleep(interval_s)
    return True


async def transfer(
    group_status: GroupStatus, ask: Callable[[str, str, float], Awaitable[None]], to: str
) -> Json:
    """Ask the leader to transfer leadership to `to`; see `World.transfer`.

    `ask(leader, to, timeout_s)` sends the request, and raises as the target's
    `transfer_leadership`.
    """
    was, term = group_status.leading()
    answer: Json = {"from": was, "took_ms": None, "error": None}
    if was is None or was == to:
        return answer
    asked_s = trio.current_time()
    with trio.move_on_after(TRANSFER_TIMEOUT_S):
        try:
            await ask(was, to, TRANSFER_TIMEOUT_S)
        except IndefiniteError as error:  # it may still happen
            answer["error"] = str(error)
        except DefiniteError as error:
            return {**answer, "error": str(error)}
        while not _leads_after(await group_status.ask(to), term):  # noqa: ASYNC110 - polled: no event
            await trio.sleep(TRANSFER_POLL_S)
        answer["took_ms"] = round((trio.current_time() - asked_s) * 1e3, 1)
    return answer


def _leads_after(status: NodeStatus | None, term: int) -> bool:
    return status is not None and status.role == "leader" and status.term > term


async def remove_member(
    target: ChangesMembers, layouts: Mapping[str, NodeLayout], node: str
) -> Json:
    """Have the target remove a node from its group; see `MovesMembers.remove_member`."""
    return await _change(partial(target.remove_member, layouts, node))


async def add_member(target: ChangesMembers, layouts: Mapping[str, NodeLayout], node: str) -> Json:
    """Have the target add a node to its group; see `MovesMembers.add_member`.

    Raises:
        IndefiniteError: it did not become a voter in time.
    """
    answer = await _change(partial(target.add_member, layouts, node))
    if answer["error"] is not None:
        raise IndefiniteError(answer["error"])
    return answer


async def _change(ask: Callable[[float], Awaitable[tuple[str, ...]]]) -> Json:
    asked_s = trio.current_time()
    try:
        with trio.fail_after(MEMBERS_TIMEOUT_S):
            members = await ask(MEMBERS_TIMEOUT_S)
    except (DefiniteError, IndefiniteError) as error:
        return {"took_ms": None, "members": [], "error": str(error)}
    except trio.TooSlowError:
        why = f"no answer within {MEMBERS_TIMEOUT_S:g} s"
        return {"took_ms": None, "members": [], "error": why}
    took_ms = round((trio.current_time() - asked_s) * 1e3, 1)
    return {"took_ms": took_ms, "members": list(members), "error": None}
