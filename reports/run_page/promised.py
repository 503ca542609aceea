"""What a target promises, in sentences: from `harness.plugins.Promises` as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shaketable.harness.promises import in_families


def promised(promises: object) -> tuple[str, ...]:
    """Say a target's promises (harness.plugins.Promises as JSON) as sentences."""
    stated: Mapping[str, Any] = promises if isinstance(promises, Mapping) else {}
    sentences = []
    if durable := _names(stated.get("durable_under")):
        survived = in_families(frozenset(durable))
        power = " (power loss counts as one of the disk)" if "power" in durable else ""
        power = "" if "power" in survived else power
        sentences.append(f"an acknowledged append survives {survived}{power}")
    if linearizable := _names(stated.get("linearizable")):
        sentences.append(f"{', '.join(sorted(linearizable))} are linearizable on each queue")
    if stated.get("committed_prefix"):
        sentences.append("committed log prefixes are equal on all nodes")
    delivered = _names(stated.get("delivered_under"))
    if delivered and set(delivered) != set(durable):
        under = in_families(frozenset(delivered))
        sentences.append(f"what is kept stays at its offset under {under}")
    if excludes := _names(stated.get("excludes")):
        sentences.append(f"never shows {', '.join(sorted(excludes))}")
    if note := stated.get("note"):
        sentences.append(str(note).rstrip("."))
    return tuple(sentences)


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
