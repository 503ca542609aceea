"""A watch whose history is shared among several judges: what they know together."""

from __future__ import annotations

import time
from collections import Counter

import msgspec

from shaketable.checkers.online import Violation, doubt_lines
from shaketable.checkers.slices import Progress
from shaketable.harness.contracts.verdict import Outcome


class Found(msgspec.Struct, frozen=True):
    """A violation that was found."""

    key: str | None
    op: int


class SharedWatch:
    """What the judges of a watch have said so far; see `judging.watching.Watch`.

    Attributes:
        lines: how many were judged.
        found: how many violations there are.
        told: how many of them were shown.
        was_continued: it goes on from a checkpoint.
    """

    is_pipe = False
    is_ended = False

    def __init__(self) -> None:
        self.lines = self.found = self.told = 0
        self.was_continued = False
        self._place = 0
        self._seen: set[Found] = set()
        self._of_buckets: dict[int, Progress] = {}
        self._new: list[Violation] = []
        self._latest_s = time.monotonic()
        self._rest_is_missing = False

    @property
    def quiet_s(self) -> float:
        """For how long there was nothing new."""
        return time.monotonic() - self._latest_s

    @property
    def operations(self) -> int:
        """How many were called."""
        return sum(each.operations for each in self._of_buckets.values())

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return sum(each.keys for each in self._of_buckets.values())

    @property
    def open(self) -> int:
        """How many operations have no end as yet."""
        return sum(each.open for each in self._of_buckets.values())

    @property
    def outcome(self) -> Outcome:
        """The verdict so far."""
        outcomes = [
            Outcome(each.outcome)
            for each in self._of_buckets.values()
            if each.outcome is not None and (each.operations or each.lacks)
        ]
        if self.found or Outcome.INVALID in outcomes:
            return Outcome.INVALID
        lacks = Outcome.UNKNOWN in outcomes or self._rest_is_missing or not self.operations
        lacks = lacks or any(each.lacks for each in self._of_buckets.values())
        return Outcome.UNKNOWN if lacks else Outcome.VALID

    def doubts(self) -> list[str]:
        """Return why keys are unknown, each reason once."""
        keys: Counter[str] = Counter()
        lacks: dict[str, None] = {}
        for each in self._of_buckets.values():
            keys.update(each.doubts)
            lacks |= dict.fromkeys(each.lacks)
        if self._rest_is_missing:
            lacks[f"line {self.lines + 1:,} has no end"] = None
        return [*doubt_lines(keys), *lacks]

    def tell(self, _violation: Violation, _sentence: str) -> None:
        """Take that a violation was shown."""
        self.told += 1

    def _note(self, each: Progress) -> None:
        """Take what a judge says."""
        self._of_buckets[each.bucket] = each
        self.lines = max(self.lines, each.through)
        self._place = max(self._place, each.byte)
        for violation in each.violations:
            found = Found(violation.key, violation.op)
            if found not in self._seen:
                self._seen.add(found)
                self.found += 1
                self._new.append(violation)

    def _new_ones(self) -> list[Violation]:
        """Return the violations that were not returned before."""
        found, self._new = self._new, []
        return found

    def _has_concluded(self, token: str) -> bool:
        ended = [each.ended == token for each in self._of_buckets.values()]
        return bool(ended) and all(ended)
