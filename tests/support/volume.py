"""How many random cases a test judges: a quarter in CI, all in tests.soaks.whole_volumes."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "SHAKETABLE_TEST_VOLUME"
WHOLE: Final = "whole"
PARTS: Final = 4
"""What takes CI 25 minutes would take an hour otherwise, and each change waits for it."""


def volume(whole: int) -> int:
    """Return the cases of this run, of so many; of what is expected to be seen the same part."""
    return whole if os.environ.get(VARIABLE) == WHOLE else max(1, whole // PARTS)
