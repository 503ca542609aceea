"""What a policy can bound: the floors and ceilings, their units and words. Pure.

A floor that is missed says that too little was tried; a ceiling that is exceeded says that the
system is worse than its policy allows. That is why they end in different exit codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run that a policy may bound.

    Attributes:
        words: what it is, for people.
        unit: behind the number, with its blank; "" for a count.
    """

    words: str
    unit: str = ""

    def text(self, value: float) -> str:
        """Say a value of it: "2.31 s", "never", "12,000"."""
        if math.isinf(value):
            return "never"
        if value == int(value):
            return f"{int(value):,}{self.unit}"
        return f"{value:,.2f}{self.unit}" if abs(value) >= 0.01 else f"{value:.2g}{self.unit}"


CEILINGS: Final[Mapping[str, Measure]] = {
    "recovery_median_s": Measure("recovery after a fault, median", " s"),
    "recovery_worst_s": Measure("recovery after a fault, worst", " s"),
    "p99_ms": Measure("p99 latency of acknowledged operations", " ms"),
    "p99_steady_ms": Measure("p99 latency before the first fault", " ms"),
    "unavailable_longest_s": Measure("longest stretch without an acknowledgement", " s"),
    "unavailable_total_s": Measure("time without acknowledgements in all", " s"),
    "acknowledged_loss": Measure("acknowledged operations seen lost"),
}
"""The keys of a policy's [ceilings]."""

FLOORS: Final[Mapping[str, Measure]] = {
    "operations": Measure("operations"),
    "faults_bit": Measure("faults that bit"),
}
"""Those keys of a policy's [floors] that bound a number of each run."""
