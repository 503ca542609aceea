"""How many faults of each family were done, and how many of them bit: from results.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from shaketable.reports.plain_json import mapping

NOT_KNOWN = "other"


def families(results: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """Return (family, how many bit, how many were done), by family; nothing of older results."""
    bit: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for of_fault in mapping(mapping(results.get("faults")).get("by_name")).values():
        family = str(of_fault["family"]) if "family" in mapping(of_fault) else NOT_KNOWN
        bit[family] += int(mapping(of_fault).get("bit") or 0)
        done[family] += int(mapping(of_fault).get("done") or 0)
    return tuple((family, bit[family], done[family]) for family in sorted(done))
