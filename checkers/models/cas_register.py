"""A register with compare-and-set.

Source: knossos.model CASRegister; porcupine's etcd model for the cas that answers "no".
"""

from __future__ import annotations

from shaketable.checkers.models.register import Register


class CasRegister(Register):
    """A register with compare-and-set: f is read, write or cas (expected -> input).

    An ok cas took effect, unless its output is 0: then it found another value. A null `expected`
    means the empty register.
    """

    name = "cas-register"
    fs = frozenset(("read", "write", "cas"))


PLUGIN = CasRegister()
