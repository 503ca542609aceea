"""Keeps pandas, which nothing here uses, out of a process: its import takes as long as a check."""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc


class _NoPandas:
    """Finds every module but pandas where the others find it."""

    def find_spec(self, name: str, *_more: object) -> None:
        """Raise ImportError for pandas."""
        if name == "pandas":
            raise ImportError(name)


def leave_pandas_out() -> None:
    """Let pyarrow's first look for pandas find none.

    pyarrow looks once, at the first array and the first scalar that it gets, to recognise what is
    of pandas; nothing here is. Where it needs pandas itself (`to_pandas`) it looks again.
    """
    if "pandas" in sys.modules:
        return
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pc.equal(pa.array([0]), 0)
    finally:
        sys.meta_path.remove(hidden)
