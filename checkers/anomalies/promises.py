"""Which promises an anomaly breaks; one that breaks none is observed, not judged.

An anomaly is a violation if the target promises linearizable operations that cannot show it, or
excludes it by name (`Promises.excludes`). A loss of data is a violation only under faults that an
acknowledged write must survive. Source: DESIGN.md decision 5.
"""

from __future__ import annotations

from typing import Final

from shaketable.harness.contracts.finding_kinds import kinds_where, record_of
from shaketable.harness.contracts.plugins import CheckContext

ANOMALIES: Final = kinds_where(lambda kind: kind.excluded_by is not None)
"""All anomalies: `Promises(excludes=ANOMALIES)` judges the history of a system that promises
everything."""


def why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Return why an anomaly breaks no promise of the target; None if it breaks one."""
    promises = context.promises
    record = record_of(kind)
    groups = record.excluded_by
    assert groups is not None, f"{kind}: its record does not say which promise excludes it"
    is_linearizable = all(group & promises.linearizable for group in groups)
    if not is_linearizable and kind not in promises.excludes:
        return "the target does not promise it"
    beyond = context.unpromised_faults(promises.durable_under)
    if record.needs_durability and beyond:
        return f"the target promises no durability under {beyond}"
    beyond = context.unpromised_faults(promises.all_delivered_under)
    if record.needs_delivery and beyond:
        return f"the target promises no delivery under {beyond}"
    return None
