"""For tests of planted bugs: the same scenario with the right parts and with the bug's."""

from __future__ import annotations

import pytest

from shaketable.system.mutants import HEALTHY, Mutant, load

__all__ = ["HEALTHY", "Mutant", "with_and_without"]


def with_and_without(name: str) -> pytest.MarkDecorator:
    """Run a test as `mutant` with no bug, and with the planted bug of that name."""
    return pytest.mark.parametrize("mutant", [HEALTHY, load(name)], ids=["healthy", name])
