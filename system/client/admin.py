"""Administration of a broker group: leadership transfer and membership changes.

To replace a member, add the new one as a learner, wait until it votes, then remove the old one.
Source: RocketMQ's DefaultMQAdminExt for the style of the API; Ongaro's dissertation section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group import UNREACHABLE, BrokerGroupClient, Metadata
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.requests import MemberRequest

POLL_INTERVAL_S = 0.05
CATCH_UP_TIMEOUT_S = 60.0

ClientAddress = tuple[str, int]
"""Host and port for clients."""


class AdminTimeoutError(Exception):
    """The awaited change did not happen in time. It still may: check `membership`."""


class AdminClient:
    """Requests changes of a group from its leader, through a client that finds the leader.

    Every request raises RefusedError (nothing changed, and why) or OutcomeUnknownError (it
    may have taken effect, or may still do so).
    """

    def __init__(self, client: BrokerGroupClient) -> None:
        self.client = client

    async def membership(self) -> Metadata:
        """Return the leader's view of the group; during an election, wait for the next leader.

        Raises RefusedError if no member leads within the client's timeout.
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
        answered_members = ", ".join(sorted(answers)) or "none"
        raise RefusedError(
            UNREACHABLE, f"no member reports that it leads; answers: {answered_members}"
        )

    async def _ask_all(self) -> dict[str, Metadata]:
        """Ask every member for its state, until the current leader is certain."""
        answers: dict[str, Metadata] = {}

        async def ask(member: str, scope: trio.CancelScope) -> None:
            with suppress(RefusedError, OutcomeUnknownError):
                answers[member] = await self.client.metadata(member)
            if _leader_among(answers, is_sure=True) is not None:
                scope.cancel()  # do not wait for a member that hangs

        async with trio.open_nursery() as nursery:
            for member in self.client.members:
                nursery.start_soon(ask, member, nursery.cancel_scope)
        return answers

    async def transfer_leadership(self, member: str) -> None:
        """Transfer the leadership to a voter; returns once it leads."""
        await self.client.transfer_leadership(member)

    async def add_member(
        self, member: str, address: str, client_address: ClientAddress | None = None
    ) -> None:
        """Add a member by its DLedger "host:port"; returns once that is committed.

        It joins as a learner and is promoted to a voter once it has caught up (see
        `wait_until_voter`). Given its `client_address`, this client may send it requests.
        """
        await self._ask(RequestCode.ADD_MEMBER, MemberRequest(member, address))
        if client_address is not None:
            self.client.learn(member, *client_address)

    async def remove_member(self, member: str) -> None:
        """Remove a member from the group for good; returns once that is committed.

        A leader that is removed leads until then. Stop the member's process afterwards.
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

        Raises as the three steps do; steps that are done are not undone.
        """
        await self.add_member(new, address, client_address)
        await self.wait_until_voter(new, timeout_s)
        await self.remove_member(old)

    async def wait_until_voter(self, member: str, timeout_s: float = CATCH_UP_TIMEOUT_S) -> None:
        """Wait until a member is a voter and the next change may follow. Raises AdminTimeoutError.

        Its promotion is committed then; before that, a new leader might still lose it.
        """
        await self._wait(
            lambda group: (
                member in group.voters and group.membership_index <= group.committed_index
            ),
            timeout_s,
            f"{member} did not become a voter",
        )

    async def _wait(
        self, condition: Callable[[Metadata], bool], timeout_s: float, failure: str
    ) -> None:
        last_seen = "no leader answered"
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    group = await self.membership()
                except (RefusedError, OutcomeUnknownError) as error:
                    last_seen = str(error)
                else:
                    if condition(group):
                        return
                    last_seen = f"voters {group.voters}, learners {group.learners}"
                await trio.sleep(POLL_INTERVAL_S)
        raise AdminTimeoutError(f"{failure} within {timeout_s:g} s: {last_seen}")

    async def _ask(self, code: RequestCode, request: MemberRequest) -> None:
        await self.client.ask_leader(code, request.to_ext())


def _leader_among(answers: Mapping[str, Metadata], *, is_sure: bool) -> Metadata | None:
    """Return the leader of the highest term.

    With `is_sure`, only if a majority of its voters answered without a higher term.
    """
    leaders = [answer for answer in answers.values() if answer.role == "leader"]
    leader = max(leaders, key=lambda answer: answer.term, default=None)
    if leader is None or not is_sure:
        return leader
    agreeing = sum(
        answers[voter].term <= leader.term for voter in leader.voters if voter in answers
    )
    return leader if agreeing > len(leader.voters) // 2 else None
