"""Registers with compare-and-set are linearizable, each by itself.

Source: jepsen.checker "linearizable" with knossos' cas-register; `checkers.linearizability`.
"""

from __future__ import annotations

from typing import Final

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.logs.durability import why_unpromised
from shaketable.checkers.models.cas_register import CasRegister
from shaketable.harness.contracts.plugins import CheckContext

NAME: Final = "linearizable-register"
FUNCTIONS: Final = frozenset(("read", "write"))
"""What a target has to promise to be linearizable for a register to be judged by that."""


def why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Say why a register that is not linearizable breaks no promise; None if it does break one."""
    promises = context.promises
    if not promises.linearizable >= FUNCTIONS:
        return "the target does not promise it"
    return why_unpromised(context)


class LinearizableRegister(Linearizable):
    """Checker "linearizable-register": reads, writes and cas of each key, first nothing.

    A cas that is ok with output 0 found another value than it expected; one that failed did
    nothing. What the target does not promise is observed and shown.
    """

    name = NAME

    def __init__(self) -> None:
        super().__init__(CasRegister(), observed=why_not_promised)


PLUGIN = LinearizableRegister()
