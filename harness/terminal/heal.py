"""The command `heal`: undo what a run with a killed harness left."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness import namespaces
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.runtime import healing
from shaketable.harness.runtime.healing import Healed
from shaketable.harness.terminal import output

STORE: Final = Path("store")
DEPTH: Final = 6
"""How deep below the given folder runs are searched: it may hold several stores, and a matrix has
its runs in STORE/NAME/TIME/runs/CELL/TIME."""
DEPTH_OF_RUNS: Final = 5
"""How deep below a store runs are, those of matrices included."""


def heal(
    where: Annotated[Path, Parameter(name="STORE|RUN")] = STORE,
    /,
    *,
    forget: Annotated[list[int] | None, Parameter(name="--forget", negative=())] = None,
) -> int:
    """Undo what a killed harness left behind.

    Ends its processes, including stopped ones, undoes the open faults of its ledger (faults.jsonl),
    takes back orders to its nodes, and removes scratch folders of killed processes. Runs whose
    harness is alive are left alone. The next run in the same store does all this by itself.

    A fault of a plug-in that recorded no undo before it was killed stays in the list until you have
    undone it by hand and pass its number with --forget.

    Exit codes: 0 nothing is left behind; 255 something could not be undone.

    For example:
    ./shaketable heal
    ./shaketable heal store/quick/latest
    ./shaketable heal store/quick/latest --forget 3

    Args:
        where: A store, of which all runs are healed, or the folder of one run.
        forget: Number of a fault of that run that you have undone by hand.
    """
    healed = _heal(where, forget or ())
    print_healed(healed)
    if not any(each.did or each.left or each.is_alive for each in healed):
        output.out.print(Text(f"{output.shown(where)}: nothing is left to undo"), soft_wrap=True)
    return ExitCode.HARNESS if any(each.left for each in healed) else ExitCode.VALID


def heal_before_a_run(store: Path) -> None:
    """Heal what killed runs left in a store and print it, before a new run starts.

    Does nothing inside the namespaces of a run, where outside processes are not visible: this was
    done before they were entered.
    """
    if namespaces.is_inside():
        return
    print_healed(each for each in healing.heal_store(store, DEPTH_OF_RUNS) if not each.is_alive)


def print_healed(healed: Iterable[Healed]) -> None:
    """Print what was healed, and what is left."""
    for each in healed:
        where = output.shown(each.folder)
        if each.is_alive:
            output.out.print(Text(f"{where}: at work; not touched"), soft_wrap=True)
        if each.did or each.left:
            is_run = each.folder != Path(tempfile.gettempdir())
            what = "left by a harness that was killed" if is_run else "left by killed processes"
            output.out.print(Text(f"{where}: {what}"), soft_wrap=True)
        for line in each.did:
            output.out.print(Text(f"  {line}"), soft_wrap=True)
        for line in each.left:
            output.out.print(Text(f"  left: {line}"), soft_wrap=True)


def _heal(where: Path, forget: Collection[int]) -> list[Healed]:
    """Heal a run's folder, or all of a store.

    Raises:
        UsageError: there is no such folder, or its harness is alive.
    """
    if not where.exists():
        if where == STORE and not forget:
            return _scratch()
        raise UsageError(f"{where}: there is no such folder; give a store or the folder of a run")
    if not where.is_dir():
        raise UsageError(f"{where}: a file; give a store or the folder of a run")
    if (where / "campaign.toml").exists() or (where / "faults.jsonl").exists():
        return [healing.heal_run(where, forget), *_scratch()]
    if forget:
        raise UsageError(f"{where}: --forget needs the folder of one run")
    return healing.heal_store(where, DEPTH)


def _scratch() -> list[Healed]:
    removed = healing.remove_scratch()
    return [Healed(Path(tempfile.gettempdir()), removed)] if removed else []
