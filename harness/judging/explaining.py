"""Says of a violation that was found while a history grew what `check` says of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from shaketable.checkers.online import Violation
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.jsonl import EventLine
from shaketable.harness.judging import checking, engines
from shaketable.harness.run_markers import scratch_prefix
from shaketable.reports.check_page.checked_history import CheckedHistory


def explain(violation: Violation, model: str) -> CheckedHistory | None:
    """Return what `check` says of the events around a violation of `model`.

    None if these events were too many to be kept, or do not show it by themselves.
    """
    if not violation.window:
        return None
    events = b"".join(msgspec.json.encode(each) + b"\n" for each in violation.window)
    settings = checking.CheckSettings(
        model=model,
        initial=violation.first,
        partition_by="none",
        engine="local",
        is_part=violation.is_part,
    )
    engine = engines.Engine("local", "")
    try:
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("watch")) as folder:
            part = Path(folder) / "part.jsonl"
            part.write_bytes(events)
            one = checking.check_path(part, settings, lambda _: engine, lambda _: None)
    except (OSError, HarnessError, UsageError):  # a full disk hides no violation
        return None
    finally:
        engine.stop()
    return one if one.outcome is Outcome.INVALID else None


def impossible_read(model: str) -> Violation:
    """Return a read of what nothing has put there, as the model has it.

    To be explained once before it is urgent: what explains is loaded and compiled then.
    """
    read = {"f": "get", "value": "7"} if model == "kv" else {"f": "read", "value": 7}
    window = tuple(
        EventLine(type=kind, process=0, key="k", time=at, **read)
        for at, kind in enumerate(("invoke", "ok"))
    )
    return Violation(None, 0, None, window, is_part=False)
