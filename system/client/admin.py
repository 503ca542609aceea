"""Administration of a broker group: leadership transfer, members that come and go.

Source: RocketMQ's DefaultMQAdminExt for the style of the API; Ongaro's dissertation section 4
for replacing a member: add it without a vote, wait until it votes, remove the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group import UNREACHABLE, BrokerGroupClient
from shaketable.system.client.results import Metadata
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.requests import MemberRequest

POLL_INTERVAL_S = 0.05
CATCH_UP_TIMEOUT_S = 60.0

ClientAddress = tuple[str, int]
"""Host and port for clients."""


class AdminTimeoutError(Exception):
    """What was waited for did not come about in time. It may still: ask `membership`."""


class AdminClient:
    """Asks the leader for changes to its group, through a client that finds the leader.

    Every request raises RefusedError (nothing changed, and why) or OutcomeUnknownError (it
    may have taken effect, or may yet).
    """

    def __init__(self, client: BrokerGroupClient) -> None:
        self.client = client

    async def membership(self) -> Metadata:
        """Return the leader's view of the group; during an election, that of the next leader.

        Raises RefusedError where no member says that it leads within the client's timeout.
        """
        deadline_s = trio.current_time() + self.client.timeout_s
        while True:
            answers = await self._ask_all()
            leader = _leader_among(answers, is_sure=False)
            if leader is not None:
                return leader
            if trio.current_time() + POLL_INTERVAL_S >= deadline_s:
                break
            await trio.sleep(POLL_INTERVAL_S)
        heard = ", ".join(sorted(answers)) or "nobody"
        raise RefusedError(UNREACHABLE, f"no member says that it leads; heard {heard}")

    async def _ask_all(self) -> dict[str, Metadata]:
        """Ask every member for its state, until a leader is sure to be known."""
        answers: dict[str, Metadata] = {}

        async def ask(member: str, scope: trio.CancelScope) -> None:
            with suppress(RefusedError, OutcomeUnknownError):
                answers[member] = await self.client.metadata(member)
            if _leader_among(answers, is_sure=True) is not None:
                scope.cancel()  # a member that hangs need not be waited for

        async with trio.open_nursery() as nursery:
            for member in self.client.members:
                nursery.start_soon(ask, member, nursery.cancel_scope)
        return answers

    async def transfer_leadership(self, member: str) -> None:
        """Hand the leadership to a voter; returns when it leads."""
        await self.client.transfer_leadership(member)

    async def add_member(
        self, member: str, address: str, client_address: ClientAddress | None = None
    ) -> None:
        """Add a member by its DLedger "host:port"; returns when that is committed.

        It gets a vote by itself once it has caught up: `wait_until_voter`. With its
        `client_address` this client may ask it from now on.
        """
        await self._ask(RequestCode.ADD_MEMBER, MemberRequest(member, address))
        if client_address is not None:
            self.client.learn(member, *client_address)

    async def remove_member(self, member: str) -> None:
        """Take a member out of the group for good; returns when that is committed.

        A leader that is removed leads until then. The member's process is to be stopped after.
        """
        await self._ask(RequestCode.REMOVE_MEMBER, MemberRequest(member))
        self.client.forget(member)

    async def replace_member(
        self,
        old: str,
        new: str,
        address: str,
        client_address: ClientAddress | None = None,
        *,
        timeout_s: float = CATCH_UP_TIMEOUT_S,
    ) -> None:
        """Add `new`, wait until it votes, then remove `old`: never fewer voters than before.

        Raises as the three steps do; what was done until then stays done.
        """
        await self.add_member(new, address, client_address)
        await self.wait_until_voter(new, timeout_s)
        await self.remove_member(old)

    async def wait_until_voter(self, member: str, timeout_s: float = CATCH_UP_TIMEOUT_S) -> None:
        """Wait until a member votes, and the next change may follow. Raises AdminTimeoutError.

        The entry that gives it the vote is committed: until then it might be lost again.
        """
        await self._wait(
            lambda group: (
                member in group.voters and group.membership_index <= group.committed_index
            ),
            timeout_s,
            f"{member} did not become a voter",
        )

    async def _wait(
        self, holds: Callable[[Metadata], bool], timeout_s: float, complaint: str
    ) -> None:
        seen = "no leader answered"
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    group = await self.membership()
                except (RefusedError, OutcomeUnknownError) as error:
                    seen = str(error)
                else:
                    if holds(group):
                        return
                    seen = f"voters {group.voters}, learners {group.learners}"
                await trio.sleep(POLL_INTERVAL_S)
        raise AdminTimeoutError(f"{complaint} within {timeout_s:g} s: {seen}")

    async def _ask(self, code: RequestCode, request: MemberRequest) -> None:
        await self.client.ask_leader(code, request.to_ext())


def _leader_among(answers: Mapping[str, Metadata], *, is_sure: bool) -> Metadata | None:
    """Return who leads in the highest term; `is_sure`: a majority knows of no higher one."""
    leaders = [answer for answer in answers.values() if answer.role == "leader"]
    leader = max(leaders, key=lambda answer: answer.term, default=None)
    if leader is None or not is_sure:
        return leader
    agreeing = sum(
        answers[voter].term <= leader.term for voter in leader.voters if voter in answers
    )
    return leader if agreeing > len(leader.voters) // 2 else None
