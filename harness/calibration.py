"""Measure detection power: hunt planted bugs, and check that the correct system stays clean.

A plan says which bugs are hunted, how and how often, from one seed. Each hunt is a process of its
own, and a scorecard sums up what was found. Each campaign is `shaketable run` in a child process,
as a person or CI would run it, so that the whole product is measured, report included.

Source: mutation testing's score (DeMillo et al. 1978), over bugs that were chosen; TigerBeetle's
VOPR for seeds as the unit of effort.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from shaketable.harness import discovery, guard
from shaketable.harness.campaigns.campaign import LOG
from shaketable.harness.contracts.abilities import PlantedBug
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.simulation import VIRTUAL_S_DEFAULT, RunSpec, Simulated
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import LATEST, RunFolder, UnreadableError, read_results
from shaketable.reports.calibration_page import BugRow, CleanRow, Found, Score, Scorecard

Method = Literal["default", "default-sim", "sim", "family"]
METHODS: Final[tuple[Method, ...]] = ("default", "default-sim", "sim", "family")
"""default: the default campaign on processes; default-sim: the same in the simulated world; sim:
seeds of the simulated worlds, and the family's campaign there; family: the campaign of the bug's
family, with its workload and faults."""
OF_DEFAULT: Final[tuple[Method, ...]] = ("default", "default-sim")
IN_SIM: Final[tuple[Method, ...]] = ("default-sim", "sim")
CLEAN: Final = ""
"""No bug: the correct system."""
SEED_STRIDE: Final = 1_000_000
"""Distance between the first seeds of hunts: more than the seeds that a hunt can run."""


class Hunt(msgspec.Struct, frozen=True, kw_only=True):
    """One hunt: search for a bug until it is found or the effort is spent.

    Attributes:
        bug: the planted bug, or CLEAN.
        family: the bug's family.
        target: the system that it is planted in.
        method: how to search for it.
        repeat: number of the repetition, from 1.
        seed: the base of its campaigns' seeds; the first seed in the simulated worlds.
        workload: of the family's campaign; "" for the default.
        faults: of the family's campaign; () for the default.
    """

    bug: str
    family: str
    target: str
    method: Method
    repeat: int
    seed: int
    workload: str = ""
    faults: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its name, also the name of its file."""
        return f"{self.target}.{self.bug or 'clean'}.{self.method}.{self.repeat}"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much a hunt may spend.

    Attributes:
        runs_max: most campaigns.
        virtual_s_max: most virtual seconds in each simulated world.
    """

    runs_max: int = 5
    virtual_s_max: float = 600.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration: its hunts and the effort for each."""

    seed: int
    effort: Effort
    hunts: tuple[Hunt, ...]


def make_plan(
    bugs: Iterable[PlantedBug],
    clean: Mapping[str, int],
    methods: Sequence[Method],
    repeats: int,
    effort: Effort,
    seed: int,
) -> Plan:
    """Return the hunts for these bugs by each method, and those on the correct system.

    Args:
        bugs: the bugs; each is planted in its first target.
        clean: how many hunts on the correct system each target gets, by each method.
        methods: the methods.
        repeats: how often each bug is hunted by each method.
        effort: what each hunt may spend.
        seed: the seed that all others are derived from.
    """
    hunted = [
        _hunt(bug, method, repeat, seed)
        for bug in bugs
        for method in methods
        for repeat in range(1, repeats + 1)
    ]
    # A family's campaign shows nothing about the correct system that the others do not.
    untouched = [
        _hunt(
            PlantedBug(name=CLEAN, family="", targets=(target,), breaks=""),
            method,
            repeat,
            seed,
        )
        for target, runs in clean.items()
        for method in methods
        if method != "family"
        for repeat in range(1, runs + 1)
    ]
    return Plan(seed=seed, effort=effort, hunts=(*hunted, *untouched))


def _hunt(bug: PlantedBug, method: Method, repeat: int, seed: int) -> Hunt:
    target = bug.targets[0]
    return Hunt(
        bug=bug.name,
        family=bug.family,
        target=target,
        method=method,
        repeat=repeat,
        seed=_seed(seed, target, bug.name, method, repeat),
        workload=bug.workload,
        faults=tuple(bug.faults),
    )


def _seed(seed: int, *of: object) -> int:
    """Return the first seed of a hunt, far from all others; `hash` would differ by process."""
    digest = hashlib.blake2b(repr((seed, *of)).encode(), digest_size=5).digest()
    return int.from_bytes(digest, "big") * SEED_STRIDE


# Hunts: campaigns and seeds, and what they found.

FAMILY_TIME_LIMIT_S: Final = 30.0
"""How long clients work in a family's campaign."""
OUTCOMES: Final = "hunts.jsonl"
"""The outcomes of a calibration's hunts, a line each: all that its scorecard is made of."""
LINGER_NS: Final = 5_000_000_000
"""A finding is attributed to a fault until this long after the fault's end."""


class HuntOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a hunt.

    Attributes:
        hunt: the hunt.
        found: the violation, None if there was none.
        runs: campaigns and seeds until then.
        took_s: real seconds until then.
        virtual_s: virtual seconds until then; 0 for campaigns on processes.
        unknown: the reasons of campaigns that were UNKNOWN.
        failed: the errors of campaigns or seeds that the harness could not run.
    """

    hunt: Hunt
    found: Found | None
    runs: int
    took_s: float
    virtual_s: float = 0.0
    unknown: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def read_outcomes(folder: Path, plan: Plan) -> dict[str, HuntOutcome]:
    """Return the outcomes of a calibration's hunts that have ended, by the hunt's id.

    A line that was cut off, as by a full disk, and one of another plan count as not there.
    """
    hunts = {hunt.id: hunt for hunt in plan.hunts}
    found: dict[str, HuntOutcome] = {}
    with suppress(FileNotFoundError):
        for line in (folder / OUTCOMES).read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                read = msgspec.json.decode(line, type=HuntOutcome)
                if hunts.get(read.hunt.id) == read.hunt:
                    found[read.hunt.id] = read
    return found


def keep_outcome(folder: Path, outcome: HuntOutcome) -> None:
    """Append an outcome to those of its calibration.

    Raises:
        HarnessError: it cannot be written.
    """
    file = folder / OUTCOMES
    try:
        with file.open("ab+") as outcomes:
            # What was cut off before must not swallow this line.
            is_whole = outcomes.seek(0, os.SEEK_END) == 0
            if not is_whole:
                outcomes.seek(-1, os.SEEK_END)
                is_whole = outcomes.read() == b"\n"
            outcomes.write((b"" if is_whole else b"\n") + msgspec.json.encode(outcome) + b"\n")
    except OSError as error:
        raise HarnessError(f"cannot write {file}: {error.strerror}") from error


def run_hunt(folder: Path, effort: Effort, hunt: Hunt) -> HuntOutcome:
    """Run a hunt; the runs that found its bug stay in the folder."""
    began_s = time.monotonic()
    state = _HuntState(folder, hunt)
    for attempt in attempts(effort, hunt):
        state.run(attempt)
        if state.found is not None:
            break
    return HuntOutcome(
        hunt=hunt,
        found=state.found,
        runs=state.runs,
        took_s=round(time.monotonic() - began_s, 1),
        virtual_s=round(state.virtual_s, 1),
        unknown=tuple(state.unknown),
        failed=tuple(state.failed),
    )


def attempts(effort: Effort, hunt: Hunt) -> Iterator[RunSpec | int]:
    """Yield the attempts of a hunt: seeds, and campaigns by number.

    In the simulated worlds campaigns alternate with batches of seeds, which cover fewer client
    operations. The correct system gets campaigns only where the target has no seeds, and a bug
    gets no seeds whose worlds lack the part that it breaks.
    """
    campaigns = 1 if hunt.bug == CLEAN else effort.runs_max
    target = discovery.get("targets", hunt.target)
    has_seeds = isinstance(target, Simulated) and hunt.method == "sim"
    if not has_seeds or not (hunt.bug == CLEAN or hunt.bug in target.simulator.mutants):
        yield from range(campaigns)
        return
    seeds = int(effort.virtual_s_max / VIRTUAL_S_DEFAULT)
    per_campaign = -(-seeds // campaigns)
    for number in range(campaigns):
        batch = range(number * per_campaign, min(seeds, (number + 1) * per_campaign))
        for world in target.simulator.worlds:
            for seed in batch:
                yield RunSpec(seed=hunt.seed + seed, world=world, mutant=hunt.bug or None)
        if hunt.bug != CLEAN:
            yield number


class _HuntState:
    """The attempts of a hunt so far, and their outcomes."""

    def __init__(self, folder: Path, hunt: Hunt) -> None:
        self._folder = folder
        self._hunt = hunt
        self.found: Found | None = None
        self.runs = 0
        self.virtual_s = 0.0
        self.unknown: list[str] = []
        self.failed: list[str] = []

    def run(self, attempt: RunSpec | int) -> None:
        """Run a seed, or a campaign."""
        self.runs += 1
        if isinstance(attempt, RunSpec):
            self._seed(attempt)
        else:
            self._campaign(attempt)

    def _seed(self, spec: RunSpec) -> None:
        target = discovery.get("targets", self._hunt.target)
        assert isinstance(target, Simulated), "it has seeds"
        try:
            run = target.simulator.run(spec)
        except Exception as error:
            if self._hunt.bug == CLEAN:
                raise  # else a clean result would include seeds that were never run
            # A planted bug may crash the simulator: the other hunts go on.
            self.failed.append(f"seed {spec.seed} of world {spec.world}: {error!r}")
            return
        self.virtual_s += run.virtual_ms / 1e3
        if run.violation is not None:
            self.found = Found(
                by=(run.violation.invariant,),
                world=spec.world,
                kinds=(run.violation.invariant,),
                says=run.violation.message,
                faults=(),
                seed=str(spec.seed),
            )

    def _campaign(self, number: int) -> None:
        hunt = self._hunt
        seed = f"{hunt.seed + number:x}"
        store = self._folder / "runs" / hunt.id / f"{number}"
        code, last_line = _run(hunt, seed, store)
        if code == ExitCode.INVALID:
            self.found = _read_found(self._folder, store / hunt.id / LATEST, hunt, seed)
            return
        if code == ExitCode.UNKNOWN:
            self.unknown.append(_summary(store / hunt.id / LATEST) or last_line)
        elif code != ExitCode.VALID:
            self.failed.append(last_line)
        shutil.rmtree(store, ignore_errors=True)


def _run(hunt: Hunt, seed: str, store: Path) -> tuple[int, str]:
    """Run one campaign; return its exit code and its last line of output."""
    argv = [sys.executable, "-P", "-m", "shaketable", "run", *_arguments(hunt, seed)]
    store.mkdir(parents=True, exist_ok=True)
    output = store / "output.txt"
    with output.open("wb") as file:
        done = subprocess.run(
            guard.command([*argv, "--store", str(store)], os.getpid()),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = [line for line in output.read_text("utf-8", "replace").splitlines() if line.strip()]
    return done.returncode, lines[-1].strip() if lines else f"exit status {done.returncode}"


def _arguments(hunt: Hunt, seed: str) -> list[str]:
    # The local engine runs the same checks; starting a JVM would take longer than most runs.
    arguments = ["--target", hunt.target, "--name", hunt.id, "--seed", seed, "--engine", "local"]
    if hunt.bug != CLEAN:
        arguments += ["--mutant", hunt.bug, "--stop-at-first-violation"]
    if hunt.method in IN_SIM:
        arguments += ["--world", "sim"]
    if hunt.method not in OF_DEFAULT:
        if hunt.workload or hunt.bug != CLEAN:
            arguments += ["--workload", hunt.workload or LOG]
        if hunt.faults:
            arguments += ["--faults", ",".join(hunt.faults)]
        arguments += ["--time-limit", f"{FAMILY_TIME_LIMIT_S:g}"]
    return arguments


def _summary(run: Path) -> str:
    """Return why a run is UNKNOWN: the summary of its first UNKNOWN checker."""
    try:
        checkers = read_results(RunFolder(run)).checkers
    except UnreadableError:
        return ""
    return next((one.summary for one in checkers.values() if one.valid == "unknown"), "")


def _read_found(folder: Path, run: Path, hunt: Hunt, seed: str) -> Found:
    """Return what an INVALID run shows first: checkers, kinds, message, faults and page."""
    from shaketable.reports.run_page.view import build_view  # noqa: PLC0415 - half a second, for campaigns

    view = build_view(run)
    decisive = [checker for checker in view.checkers if checker.verdict == "INVALID"]
    shown = [one for checker in decisive for group in checker.groups for one in group.shown]
    moment_ns = next((ns for one in shown if (ns := _moment_ns(one)) is not None), None)
    faults = {
        row.window.name
        for row in view.faults
        if moment_ns is not None
        and row.window.from_ns <= moment_ns <= row.window.stop_ns + LINGER_NS
    }
    page = run.resolve() / (view.first_page or "report.html")
    return Found(
        by=tuple(checker.name for checker in decisive),
        world="sim" if hunt.method in IN_SIM else "process",
        kinds=tuple(dict.fromkeys(one.kind for one in shown)),
        says=view.why,
        faults=tuple(sorted(faults)),
        seed=seed,
        report=os.path.relpath(page, folder),
    )


def _moment_ns(violation: Any) -> int | None:
    """Return when a violation took place, as far as its finding says."""
    if violation.acknowledged_ns is not None:
        return int(violation.acknowledged_ns)
    marked = [row for row in violation.around if row.marked]
    return marked[0].call_ns if marked else None


# The results of a calibration: a row for each bug, a matrix of faults, false alarms.

FORMAT: Final = 1
NO_FAULT: Final = "none"
"""In the matrix: found while no fault was in force or had just ended."""


def add_up(outcomes: Sequence[HuntOutcome], seed: int, hunts: int) -> Scorecard:
    """Sum up the outcomes of a calibration's hunts, in the order of the plan."""
    methods = tuple(name for name in METHODS if any(o.hunt.method == name for o in outcomes))
    bugs: dict[str, list[HuntOutcome]] = {}
    clean: dict[tuple[str, Method], list[HuntOutcome]] = {}
    for outcome in outcomes:
        hunt = outcome.hunt
        if hunt.bug == CLEAN:
            clean.setdefault((hunt.target, hunt.method), []).append(outcome)
        else:
            bugs.setdefault(hunt.bug, []).append(outcome)
    return Scorecard(
        format=FORMAT,
        seed=seed,
        methods=methods,
        bugs=tuple(_bug_row(of_bug, methods) for of_bug in bugs.values()),
        clean=tuple(_clean_row(*key, of_clean) for key, of_clean in clean.items()),
        matrix=_matrix(outcomes),
        hunts=hunts,
        done=len(outcomes),
    )


def to_json(card: Scorecard) -> dict[str, Any]:
    """Return a scorecard as JSON."""
    return dict(msgspec.to_builtins(card))


def _bug_row(outcomes: Sequence[HuntOutcome], methods: Sequence[str]) -> BugRow:
    hunt = outcomes[0].hunt
    by_method = {
        method: [outcome for outcome in outcomes if outcome.hunt.method == method]
        for method in methods
    }
    scores = {method: _score(of) for method, of in by_method.items() if of}
    return BugRow(bug=hunt.bug, family=hunt.family, target=hunt.target, scores=scores)


def _score(outcomes: Sequence[HuntOutcome]) -> Score:
    found = [(outcome, outcome.found) for outcome in outcomes if outcome.found is not None]
    first = found[0][1] if found else None
    return Score(
        hunts=len(outcomes),
        found=len(found),
        runs=tuple(outcome.runs for outcome, _ in found),
        took_s=tuple(outcome.took_s for outcome, _ in found),
        virtual_s=tuple(outcome.virtual_s for outcome, _ in found),
        by=_frequent(name for _, one in found for name in one.by),
        kinds=_frequent(one.kinds[0] for _, one in found if one.kinds),
        says="" if first is None else first.says,
        report="" if first is None else first.report,
        unknown=tuple(why for outcome in outcomes for why in outcome.unknown),
        failed=tuple(why for outcome in outcomes for why in outcome.failed),
    )


def _clean_row(target: str, method: str, outcomes: Sequence[HuntOutcome]) -> CleanRow:
    return CleanRow(
        target=target,
        method=method,
        runs=sum(outcome.runs for outcome in outcomes),
        alarms=tuple(outcome.found for outcome in outcomes if outcome.found is not None),
        unknown=tuple(why for outcome in outcomes for why in outcome.unknown),
        failed=tuple(why for outcome in outcomes for why in outcome.failed),
    )


def _matrix(outcomes: Iterable[HuntOutcome]) -> dict[str, dict[str, int]]:
    """Count by fault and bug the campaigns that found the bug during or just after the fault."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        if outcome.found is not None and outcome.found.report and outcome.hunt.bug != CLEAN:
            for fault in outcome.found.faults or (NO_FAULT,):
                counts[fault, outcome.hunt.bug] += 1
    matrix: dict[str, dict[str, int]] = {}
    for (fault, bug), count in sorted(counts.items()):
        matrix.setdefault(fault, {})[bug] = count
    return dict(sorted(matrix.items(), key=lambda item: -len(item[1])))


def _frequent(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(names).most_common())
