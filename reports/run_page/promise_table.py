"""The table of promises: their texts, the checkers that judged them, and the findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.promises import in_families
from shaketable.reports import finding_texts
from shaketable.reports.run_view import CheckerView, PromiseRow

DURABLE, DELIVERED, LINEARIZABLE, PREFIX, EXCLUDED, MEANT, RULES, ISOLATED = range(8)

JUDGES: Final[Mapping[str, tuple[int, ...]]] = {
    "durability": (DURABLE,),
    "final-reads": (DURABLE,),
    "set-full": (DURABLE, LINEARIZABLE, EXCLUDED),
    "counter": (DURABLE, LINEARIZABLE, EXCLUDED),
    "total-queue": (DURABLE, LINEARIZABLE, EXCLUDED),
    "consumer-offsets": (DURABLE, EXCLUDED),
    "group-delivery": (DURABLE, DELIVERED, EXCLUDED),
    "log-anomalies": (DURABLE, DELIVERED, LINEARIZABLE, EXCLUDED),
    "linearizable": (LINEARIZABLE,),
    "linearizable-log": (LINEARIZABLE,),
    "linearizable-register": (LINEARIZABLE,),
    "cycles": (LINEARIZABLE, EXCLUDED),
    "transaction-cycles": (LINEARIZABLE, EXCLUDED),
    "bank": (ISOLATED,),
    "isolation": (ISOLATED, EXCLUDED),
    "committed-prefix": (PREFIX,),
    "invariants": (RULES,),
    "run-as-planned": (MEANT,),
    "vacuity": (MEANT,),
    "stats": (MEANT,),
    "online": (LINEARIZABLE,),
}
"""Promises that each of our checkers judges; other checkers judge what the target excludes."""

ABOUT: Final = {"kept": DURABLE, "delivered": DELIVERED, "committed": PREFIX}
"""The row of what a kind of finding is about (`finding_kinds`)."""


def promise_rows(promises: object, checkers: Sequence[CheckerView]) -> tuple[PromiseRow, ...]:
    """Return a row for each promise of the target, and one on whether the run tested them.

    Args:
        promises: contracts.plugins.Promises as JSON; anything else promises nothing.
        checkers: the verdicts of the run.
    """
    stated: Mapping[str, Any] = promises if isinstance(promises, Mapping) else {}
    # A target that says nothing of delivery has it as durable, also one that knows no messages.
    follows = _names(stated.get("delivered_under")) == _names(stated.get("durable_under"))
    rows = [
        row
        for which, text in _stated(stated)
        if (row := _row(which, text, checkers)).judged_by or which != DELIVERED or not follows
    ]
    if any(RULES in JUDGES.get(checker.name, ()) for checker in checkers):
        rows.append(
            _row(RULES, "Nodes and clients keep the rules of their own protocol.", checkers)
        )
    if checkers:
        meant = (
            "The run tested this: it ran to its end, faults took effect, and enough was done under"
            " them."
        )
        rows.append(_row(MEANT, meant, checkers))
    return tuple(row for row in rows if row.judged_by or row.text)


def _stated(stated: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    durable = _names(stated.get("durable_under"))
    if durable:
        yield DURABLE, f"What was acknowledged is kept under {in_families(frozenset(durable))}."
    delivered = _names(stated.get("delivered_under"))
    if delivered:
        under = in_families(frozenset(delivered))
        yield DELIVERED, f"What is kept stays at its offset, and consumers get it, under {under}."
    if linearizable := _names(stated.get("linearizable")):
        names = ", ".join(sorted(linearizable))
        behave = "behave" if len(linearizable) > 1 else "behaves"
        yield (
            LINEARIZABLE,
            f"On each key, {names} {behave} as if done one after the other, each at a moment "
            "between its call and its answer (linearizable).",
        )
    if level := stated.get("isolation"):
        yield ISOLATED, f"Transactions are isolated as {level} asks for (docs/isolation.md)."
    if stated.get("committed_prefix"):
        yield PREFIX, "What is committed is the same, entry by entry, in the logs of all nodes."
    if excludes := _names(stated.get("excludes")):
        yield EXCLUDED, f"None of these is ever seen: {', '.join(sorted(excludes))}."


def _row(which: int, text: str, checkers: Sequence[CheckerView]) -> PromiseRow:
    judges = [checker for checker in checkers if which in JUDGES.get(checker.name, (EXCLUDED,))]
    if not judges:
        return PromiseRow(text, (), "nothing in this run looks at it", "")
    against = {checker.name: _against(which, checker) for checker in judges}
    verdict = _verdict(judges, against)
    return PromiseRow(
        text,
        tuple((checker.name, _own_verdict(checker, against)) for checker in judges),
        _found(judges, against, verdict),
        verdict,
    )


def _against(which: int, checker: CheckerView) -> tuple[tuple[str, int], ...]:
    """Return the checker's findings that break this promise, by kind."""

    def is_against(kind: str) -> bool:
        about = ABOUT.get(record_of(kind).about or "", which)
        return about == which or about not in JUDGES.get(checker.name, ())

    return tuple((kind, count) for kind, count in checker.totals if is_against(kind))


def _own_verdict(checker: CheckerView, against: Mapping[str, Sequence[object]]) -> str:
    """Return the checker's verdict on this promise: its findings may be about another one."""
    is_about_another = checker.verdict == "INVALID" and checker.totals and not against[checker.name]
    return "VALID" if is_about_another else checker.verdict


def _verdict(judges: Sequence[CheckerView], against: Mapping[str, Sequence[object]]) -> str:
    verdicts = {_own_verdict(checker, against) for checker in judges}
    return next(word for word in ("INVALID", "UNKNOWN", "VALID") if word in verdicts)


def _found(
    judges: Sequence[CheckerView],
    against: Mapping[str, Sequence[tuple[str, int]]],
    verdict: str,
) -> str:
    if verdict == "VALID":
        return "nothing against it"
    found = (
        finding_texts.summarize(finding_texts.merge_totals(against.values()))
        if verdict == "INVALID"
        else ""
    )
    silent = [
        f"{checker.name}: {checker.summary}"
        for checker in judges
        if _own_verdict(checker, against) == verdict
        and not (verdict == "INVALID" and against[checker.name])
    ]
    return "; ".join(part for part in (found, *silent) if part) or "not known"


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


# A target's promises as sentences, from `contracts.plugins.Promises` as JSON.


def promised(promises: object) -> tuple[str, ...]:
    """Return a target's promises (contracts.plugins.Promises as JSON) as sentences."""
    stated: Mapping[str, Any] = promises if isinstance(promises, Mapping) else {}
    sentences = []
    if durable := _names(stated.get("durable_under")):
        survived = in_families(frozenset(durable))
        power = " (power loss counts as one of the disk)" if "power" in durable else ""
        power = "" if "power" in survived else power
        sentences.append(f"an acknowledged append survives {survived}{power}")
    if linearizable := _names(stated.get("linearizable")):
        sentences.append(f"{', '.join(sorted(linearizable))} are linearizable on each queue")
    if level := stated.get("isolation"):
        sentences.append(f"transactions are {level}")
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
