"""A register with compare-and-set.

Source: knossos.model CASRegister; porcupine's etcd model for the cas that answers "no".
"""

from __future__ import annotations

from shaketable.checkers.models.register import Register


class CasRegister(Register):
    """A register with compare-and-set: f is read, write or cas (expected -> input).

    A cas that is ok took effect, unless its output is 0: then it is known to have found
    another value. A null `expected` stands for nothing.
    """

    name = "cas-register"
    fs = frozenset(("read", "write", "cas"))


PLUGIN = CasRegister()
