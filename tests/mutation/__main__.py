"""Bugs that nobody chose: makes mutants of the system and asks who finds them.

    .venv/bin/python -m tests.mutation run --per-package 60 --judges unit,core,node,campaigns
    .venv/bin/python -m tests.mutation summary
    .venv/bin/python -m tests.mutation show 34489640

`run` draws the sample (the same for the same --seed), asks each judge in turn about each mutant,
in a copy of the tree of its own, and appends what it says to a journal: a run that was cut goes
on where it was. `summary` prints the scores and the survivors, with the reasons given in
survivors.toml beside this file. docs/mutation.md says what is counted how.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from tests.mutation import campaigns, children, reach
from tests.mutation.journal import Journal
from tests.mutation.mutants import Mutant, mutants_of, sample
from tests.mutation.reach import PACKAGES, say
from tests.mutation.stages import FOUND, JUDGES, SHAKING, UNIT, Limits, Outcome, judge
from tests.mutation.summary import summarise
from tests.mutation.trees import JUDGED, OF_CAMPAIGNS, ROOT, SIMULATED, copy_of_tree, digest_of

PARTS = {"core": SIMULATED, "node": SIMULATED, "master_slave": SIMULATED, "campaigns": OF_CAMPAIGNS}


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    asked = _parser().parse_intermixed_args(arguments)
    work = Path(asked.work)
    work.mkdir(parents=True, exist_ok=True)
    journal = Journal(Path(asked.journal))
    mutants = draw(asked.packages.split(","), asked.per_package, asked.seed, journal.mutants)
    if asked.command == "summary":
        return summarise(mutants, journal)
    if asked.command == "show":
        chosen = [one for one in mutants if one.id in asked.ids]
        for mutant in chosen:
            say(f"{mutant.id} {mutant.path}:{mutant.line} {mutant.operator} in {mutant.function}")
            sys.stdout.write(mutant.diff(ROOT) + "\n")
        return 0 if chosen else 254
    os.nice(asked.nice)
    limits = Limits(
        core_seeds=asked.core_seeds,
        node_seeds=asked.node_seeds,
        master_slave_seeds=asked.master_slave_seeds,
        virtual_s=asked.virtual_s,
        campaigns=asked.campaigns,
        process_s=asked.process_s,
    )
    if asked.again:
        journal.forget_missed(digest_of(ROOT, JUDGED))
    judges = asked.judges.split(",")
    run(mutants, judges, limits, journal, work, asked.jobs, asked.survivors_only)
    journal.compact()
    return summarise(mutants, journal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("command", choices=("run", "summary", "show"))
    parser.add_argument("ids", nargs="*", help="of mutants to show")
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--per-package", type=int, default=65, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1, help="which sample is drawn")
    parser.add_argument("--judges", default=",".join(JUDGES), help="in which order they are asked")
    parser.add_argument(
        "--survivors-only", action="store_true", help="ask about what no judge has found yet"
    )
    parser.add_argument(
        "--again", action="store_true", help="ask anew about what was missed on another tree"
    )
    parser.add_argument("--core-seeds", type=int, default=Limits().core_seeds)
    parser.add_argument("--node-seeds", type=int, default=Limits().node_seeds)
    parser.add_argument("--master-slave-seeds", type=int, default=Limits().master_slave_seeds)
    parser.add_argument("--virtual-s", type=float, default=Limits().virtual_s, help="of each seed")
    parser.add_argument(
        "--campaigns", type=int, default=Limits().campaigns, help="in the simulated world"
    )
    parser.add_argument("--process-s", type=float, default=Limits().process_s, help="of clients")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--nice", type=int, default=10, help="how far it steps back for others")
    parser.add_argument("--journal", default=str(Path(__file__).with_name("journal.jsonl")))
    parser.add_argument(
        "--work", default=str(ROOT / "store" / "mutation"), help="for what is measured"
    )
    return parser


def draw(
    packages: list[str], per_package: int, seed: int, judged: Collection[str] = ()
) -> list[Mutant]:
    """Return the sample, packages in turn, so that a cut run has seen some of each."""
    drawn = [sample(mutants_of(ROOT, one), per_package, seed, judged) for one in packages]
    return [one for some in zip_longest(*drawn) for one in some if one is not None]


def run(
    mutants: list[Mutant],
    judges: list[str],
    limits: Limits,
    journal: Journal,
    work: Path,
    jobs: int,
    survivors_only: bool,
) -> None:
    """Ask the judges about the mutants, and keep what they say."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        children.end_all()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    tree = digest_of(ROOT, JUDGED)
    reaches = {name: _reach(name, work, limits) for name in judges}
    with compiled_copy(judges) as base:
        pairs = waiting(mutants, judges, limits, journal, survivors_only)
        _ask_all(pairs, base, reaches, limits, journal, tree, jobs, stopped)


@contextmanager
def compiled_copy(judges: Collection[str]) -> Iterator[Path]:
    """Copy the tree, to copy it again for each mutant: edits made meanwhile are not in it.

    All is compiled once and not for each mutant: the tests by pytest, which rewrites them, and
    kernels by campaigns. To compile those takes longer than a mutant's campaign may.
    """
    with copy_of_tree() as base:
        compileall.compile_dir(base, quiet=2)
        if "campaigns" in judges:
            say("compiling the kernels of checkers")
            program = (sys.executable, "-m", "tests.mutation.campaigns", campaigns.UNLIMITED)
            children.run([*program, *campaigns.COMPILING], base, cpu_s=1_200)
            shutil.rmtree(base / "runs", ignore_errors=True)
        if "unit" in judges:
            collect = (sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only")
            children.run([*collect, *reach.TEST_FOLDERS], base, cpu_s=300)
        yield base


def _ask_all(
    pairs: Iterable[tuple[str, Mutant]],
    base: Path,
    reaches: Mapping[str, reach.Reach | None],
    limits: Limits,
    journal: Journal,
    tree: str,
    jobs: int,
    stopped: threading.Event,
) -> None:
    def ask(pair: tuple[str, Mutant]) -> None:
        name, mutant = pair
        if stopped.is_set():
            return
        known = journal.of(mutant.id, name)
        tried = known.tried if known is not None and known.outcome == "survived" else []
        reached = reaches[name]
        if reached is not None and not reached.of(mutant.path, mutant.line, mutant.last_line):
            journal.note(mutant.id, name, Outcome("not-reached"), tree)
            return
        parts = PARTS.get(name, (".",))
        with copy_of_tree(base, {mutant.path: mutant.text(base)}, parts) as copy:
            outcome = judge(name, mutant, copy, reached, limits, tried)
        if stopped.is_set():
            return  # what was ended says nothing about the mutant
        journal.note(mutant.id, name, outcome, tree)
        where = f"{mutant.path}:{mutant.line} {mutant.operator}"
        say(f"{mutant.id} {name} {outcome.outcome} {where} {outcome.seconds:.0f} s {outcome.by}")

    with ThreadPoolExecutor(jobs) as pool:
        asked = deque[Future[None]]()
        for pair in pairs:  # not all at once: who is found meanwhile is not asked about again
            asked.append(pool.submit(ask, pair))
            if len(asked) >= jobs:
                asked.popleft().result()
        for one in asked:
            one.result()


def waiting(
    mutants: list[Mutant],
    judges: list[str],
    limits: Limits,
    journal: Journal,
    survivors_only: bool,
) -> Iterator[tuple[str, Mutant]]:
    """Yield who is to be asked about which mutant, as far as that is known then."""
    for name in judges:
        for mutant in mutants:
            known = journal.of(mutant.id, name)
            if known is not None and not _goes_deeper(name, known.outcome, known.tried, limits):
                continue
            if survivors_only and _is_found(mutant, journal):
                continue
            yield name, mutant


def _is_found(mutant: Mutant, journal: Journal) -> bool:
    asked = (journal.of(mutant.id, name) for name in SHAKING)
    return any(one is not None and one.outcome in FOUND for one in asked)


def _goes_deeper(name: str, outcome: str, tried: list[str], limits: Limits) -> bool:
    """Say whether a judge that found nothing would now look at more."""
    most = {world: limits.seeds_of(world) for world in reach.WORLDS}
    most["campaigns"] = limits.campaigns
    return outcome == "survived" and 0 < len(tried) < most.get(name, 0)


def _reach(name: str, work: Path, limits: Limits) -> reach.Reach | None:
    if name == reach.CAMPAIGNS:
        return reach.load_campaigns(work)
    if name == UNIT:
        return reach.load(work, name)
    seeds = reach.WORLDS.get(name)
    return reach.load(work, name, seeds, limits.virtual_s) if seeds else None


if __name__ == "__main__":
    sys.exit(main())
