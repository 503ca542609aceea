"""Who is who in a scenario: roles that are given out when it begins, and kept until it is over.

"leader" is whoever leads when a fault begins. In a sequence of faults that is not enough: the one
that led before the first of them is to come back, whoever was elected since is to fall. A cast
names nodes once; later steps strike the same.

    @led              who led when the first step was aimed
    @follower-2       the second of the others, in the order that was drawn for the first step
    @followers        all others
    @minority, @rest  the first (n - 1) / 2 of the others, and who is left of them: with @led they
                      are just a majority
    @NAME             whom the step with `remember = "NAME"` struck

Several are joined by "+": "@led+@follower-1".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json

ROLE: Final = "@"
TOGETHER: Final = "+"
GIVEN_OUT: Final = ("led", "followers", "minority", "rest")
_FOLLOWER: Final = re.compile(r"follower-([1-9])")
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")


def roles_of(victims: Sequence[str]) -> str:
    """Return the roles that a step aims at, joined; "" if it names none.

    Raises:
        UsageError: it names roles and other victims, or what is no role.
    """
    asked = [name for victim in victims for name in victim.split(TOGETHER)]
    if not any(name.startswith(ROLE) for name in asked):
        return ""
    for name in asked:
        if not name.startswith(ROLE) or not _NAME.fullmatch(name.removeprefix(ROLE)):
            raise UsageError(f"victims {', '.join(victims)}: expected roles alone, as @led+@rest")
    return TOGETHER.join(asked)


def check_name(name: str) -> None:
    """See to it that a step may remember its victims under that name.

    Raises:
        UsageError: it may not.
    """
    if name in GIVEN_OUT or _FOLLOWER.fullmatch(name) or not _NAME.fullmatch(name):
        raise UsageError(f"remember {name!r}: expected a name of its own, as old-leader")


class Cast:
    """The roles of one scenario.

    Args:
        leader: who leads when it begins, None if nobody is known to.
        order: all nodes, as they were drawn.
    """

    def __init__(self, leader: str | None, order: Sequence[str]) -> None:
        self._led = leader if leader is not None else order[0]
        self._followers = [node for node in order if node != self._led]
        self._remembered: dict[str, list[str]] = {}

    def remember(self, name: str, nodes: Sequence[str]) -> None:
        """Give these nodes a name."""
        self._remembered[name] = list(nodes)

    def nodes(self, roles: str) -> list[str]:
        """Return the nodes that play these roles ("@led+@rest"), each once; none perhaps."""
        found: dict[str, None] = {}
        for role in roles.split(TOGETHER):
            found |= dict.fromkeys(self._of(role.removeprefix(ROLE)))
        return list(found)

    def aimed(self, plan: Json, roles: str) -> Json | None:
        """Return the plan, aimed at these roles; None if nobody plays them.

        Of a plan in the vocabulary of `harness.faults.victims`: its "variant" names them, and they
        come first in its "order".
        """
        nodes = self.nodes(roles)
        if not nodes:
            return None
        named = {"variant": TOGETHER.join(nodes)} if "variant" in plan else {}
        rest = [node for node in plan.get("order", ()) if node not in nodes]
        return {**plan, **named, "order": [*nodes, *rest]}

    def _of(self, role: str) -> Sequence[str]:
        few = max(1, len(self._followers) // 2)
        match role:
            case "led":
                return [self._led]
            case "followers":
                return self._followers
            case "minority":
                return self._followers[:few]
            case "rest":
                return self._followers[few:]
        if (follower := _FOLLOWER.fullmatch(role)) is not None:
            number = int(follower[1])
            return self._followers[number - 1 : number]
        return self._remembered.get(role, ())
