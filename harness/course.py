"""Judges whether a run took its course: else the other verdicts say less than they seem to.

A node that ended by itself, a group that did not come back after the heal, a client worker
that died, an undo that failed: none of these breaks a declared promise, so none is INVALID,
and none may pass as VALID. Where time is virtual more is known: see `harness.liveness`.

Source: Jepsen's `stats` and log-file-pattern checkers play this part there.
"""

from __future__ import annotations

import json
from typing import Any, Final

from shaketable.harness.errors import HarnessError
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.verdict import Finding, Outcome, Verdict

NAME: Final = "run-as-planned"


def judge_course(folder: RunFolder) -> Verdict:
    """Return VALID for a run that did what was planned and whose group came back, else UNKNOWN.

    Raises:
        HarnessError: run.json cannot be read.
    """
    try:
        facts = json.loads(folder.run_json.read_bytes())
        findings = _findings(facts)
    except FileNotFoundError:
        return Verdict(NAME, Outcome.UNKNOWN, "there is no run.json that says how the run went")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"cannot read {folder.run_json}: {error}") from error
    if not findings:
        return Verdict(NAME, Outcome.VALID, "nothing ended by itself, and the group came back")
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return Verdict(
        NAME, Outcome.UNKNOWN, findings[0].message + more, tuple(findings), len(findings)
    )


def _findings(facts: dict[str, Any]) -> list[Finding]:
    if facts.get("status") not in {"complete", "interrupted"}:
        return [Finding("cut-short", "the run was cut short: it never came to its end")]
    exits = [
        Finding(
            "node-ended",
            f"{one['node']} (incarnation {one['incarnation']}) ended by itself with status "
            f"{one['returncode']}: {one['last_line'] or 'it said nothing'}",
            details=one,
        )
        for one in facts["exits"]
    ]
    stopped = facts.get("stopped_at")
    early = f"it was ended at the first violation that was seen: {stopped}"
    told = [Finding("ended-early", early)] if stopped else []
    told += [Finding("problem", problem) for problem in facts["problems"][: -len(exits) or None]]
    if "steady" not in {phase["name"] for phase in facts.get("phases", ())} and facts.get("phases"):
        began = "clients never began: before that the group did not serve, or the run was ended"
        return [*exits, *told, Finding("not-begun", began)]
    drained = [
        Finding(
            "not-drained",
            "after the heal the group did not settle: clients could not finish, or the nodes "
            "did not agree on a committed index",
        )
    ]
    return [*exits, *told, *([] if facts["drained"] else drained)]
