"""Checks that registers with compare-and-set are linearizable, key by key.

Source: jepsen.checker "linearizable" with knossos' cas-register; `checkers.linearizability`.
"""

from __future__ import annotations

from typing import Final

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.logs.durability import why_unpromised
from shaketable.checkers.models.register import CasRegister
from shaketable.harness.contracts.plugins import CheckContext

NAME: Final = "linearizable-register"
FUNCTIONS: Final = frozenset(("read", "write"))
"""What a target must promise to be linearizable; otherwise violations are only observed."""


def why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Return why a register that is not linearizable breaks no promise; None if it breaks one."""
    promises = context.promises
    if not promises.linearizable >= FUNCTIONS:
        return "the target does not promise it"
    return why_unpromised(context)


class LinearizableRegister(Linearizable):
    """The reads, writes and cas of each register are linearizable.

    An ok cas with output 0 found another value than it expected; a failed one had no effect.
    Violations of what the target does not promise are observed, not counted.
    """

    name = NAME

    def __init__(self) -> None:
        super().__init__(CasRegister(), observed=why_not_promised)


PLUGIN = LinearizableRegister()
