"""A matrix as data: targets x workloads x faults x worlds x seeds, and its cells. Pure.

    name = "every-fault"
    faults = "each"                        # one cell per fault; or names, or lists of names
    worlds = ["process", "netns", "sim"]
    seeds = 2                              # how many random ones; or a list of seeds
    effects_min = 3

    [campaign]                             # keys of a campaign file, for every cell
    time_limit = 60.0

    [[adjust]]                             # other keys for some cells; the last one wins
    faults = ["power"]
    worlds = ["sim"]
    campaign = { rate = 200.0 }

    [[exclude]]
    faults = ["wipe"]
    why = "needs a spare disk"

Axes that are left out come from [campaign], or from the defaults of a campaign.

Source: GitHub's workflow matrices (axes, include, exclude); tipocket's and etcd's test matrices.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from shaketable.harness.contracts.errors import UsageError, unknown_name

EACH: Final = "each"
CELLS_MAX: Final = 10_000
SEEDS_MAX: Final = 1_000
EFFECTS_MAX: Final = 1_000
AXES: Final[tuple[str, ...]] = ("targets", "workloads", "faults", "worlds", "seeds")
KEY_OF_AXIS: Final[Mapping[str, str]] = {axis: axis.removesuffix("s") for axis in AXES} | {
    "faults": "faults"
}
"""The campaign key that each axis sets."""
OWN_KEYS: Final = ("name", "store", "script")
"""Campaign keys that no matrix may set: every cell has its own."""
_TABLES: Final = ("campaign", "adjust", "exclude")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_UNFIT = re.compile(r"[^A-Za-z0-9+._-]+")


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a matrix: one value of each axis; None if the matrix has no such axis."""

    targets: str | None = None
    workloads: str | None = None
    faults: tuple[str, ...] | None = None
    worlds: str | None = None
    seeds: str | None = None

    def matches(self, where: Mapping[str, Sequence[str]]) -> bool:
        """Return whether the point has one of the given values on each axis of `where`."""
        for axis, values in where.items():
            here = getattr(self, axis)
            own = here if axis == "faults" else (here,)
            if not set(values) & set(own or ()):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for some cells: other campaign keys, or exclusion with a reason."""

    where: Mapping[str, tuple[str, ...]]
    campaign: Mapping[str, Any]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as its file defines it.

    Attributes:
        name: the folder under the store.
        axes: the values of each axis that it has; faults are tuples of names.
        effects_min: a cell in which a fault took effect less often is not valid.
        campaign: campaign keys for all cells.
        adjust: other keys for some cells.
        exclude: cells that are left out.
    """

    name: str
    axes: Mapping[str, tuple[Any, ...]]
    effects_min: int
    campaign: Mapping[str, Any]
    adjust: tuple[Rule, ...]
    exclude: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class CellSpec:
    """A cell before it is checked whether it can be run: its point and its campaign's keys."""

    id: str
    point: Point
    campaign: Mapping[str, Any]
    excluded: str | None


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cell of a matrix: one run. `skipped` is why it will not be run, or ""."""

    id: str
    target: str
    workload: str
    faults: tuple[str, ...]
    world: str
    seed: str
    family: str = ""
    skipped: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All cells of a matrix, in the order in which they are run: the content of plan.json."""

    name: str
    effects_min: int
    cells: tuple[Cell, ...]


def read_matrix(text: str, where: str, faults: Iterable[str], draw_seeds: Iterator[str]) -> Matrix:
    """Read a matrix file.

    Args:
        text: the file's content.
        where: its name in errors.
        faults: all known faults, for `faults = "each"`.
        draw_seeds: source of seeds if only their number is given.

    Raises:
        UsageError: the file is invalid; one line says where and why.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: not TOML: {error}") from error
    known = ("name", "effects_min", *AXES, *_TABLES)
    for key in given:
        if key not in known:
            raise UsageError(f"{where}: {unknown_name('key of a matrix', key, known)}")
    axes = {
        axis: _axis(axis, given[axis], where, faults, draw_seeds) for axis in AXES if axis in given
    }
    matrix = Matrix(
        name=_checked_name(given.get("name", Path(where).stem), where),
        axes=axes,
        effects_min=_number(given.get("effects_min", 0), "effects_min", 0, EFFECTS_MAX, where),
        campaign=_campaign(given.get("campaign", {}), f"{where}: [campaign]", axes),
        adjust=_rules(given.get("adjust", []), "adjust", where, axes),
        exclude=_rules(given.get("exclude", []), "exclude", where, axes),
    )
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > CELLS_MAX:
        raise UsageError(f"{where}: {count:,} cells, at most {CELLS_MAX:,}")
    return matrix


def expand(matrix: Matrix) -> list[CellSpec]:
    """Return all cells of a matrix, excluded ones too; seeds change fastest, then worlds.

    Raises:
        UsageError: two cells would be the same.
    """
    axes = [(axis, matrix.axes.get(axis, (None,))) for axis in AXES]
    cells: dict[str, CellSpec] = {}
    for values in itertools.product(*(values for _, values in axes)):
        point = Point(**dict(zip(AXES, values, strict=True)))
        cell = CellSpec(
            id=_cell_id(matrix, point),
            point=point,
            campaign=_keys(matrix, point),
            excluded=next(
                (rule.why or "excluded" for rule in matrix.exclude if point.matches(rule.where)),
                None,
            ),
        )
        if cells.setdefault(cell.id, cell) is not cell:
            raise UsageError(f"matrix {matrix.name}: {cell.id} is there twice")
    return list(cells.values())


def _keys(matrix: Matrix, point: Point) -> dict[str, Any]:
    keys = dict(matrix.campaign)
    for rule in matrix.adjust:
        if point.matches(rule.where):
            keys.update(rule.campaign)
    for axis in matrix.axes:
        value = getattr(point, axis)
        keys[KEY_OF_AXIS[axis]] = list(value) if axis == "faults" else value
    return keys


def _cell_id(matrix: Matrix, point: Point) -> str:
    """Return a cell's id from its values on axes that have several; usable as a folder name."""
    parts = []
    for axis in AXES:
        values, value = matrix.axes.get(axis, ()), getattr(point, axis)
        if axis == "seeds":
            parts += [f"s{values.index(value) + 1}"] if len(values) > 1 else []
        elif axis == "faults":
            parts += ["+".join(value) or "none"] if values else []
        elif len(values) > 1 or (axis == "worlds" and values):
            parts.append(str(value))
    return _UNFIT.sub("_", "-".join(parts)) or matrix.name


def _axis(
    axis: str, given: Any, where: str, faults: Iterable[str], draw_seeds: Iterator[str]
) -> tuple[Any, ...]:
    if axis == "faults":
        if given == EACH:
            return tuple((name,) for name in faults)
        return tuple(_fault_names(value, where) for value in _listed(axis, given, where))
    if axis == "seeds":
        if isinstance(given, int) and not isinstance(given, bool):
            count = _number(given, "seeds", 1, SEEDS_MAX, where)
            return tuple(itertools.islice(draw_seeds, count))
        given = [str(one) if isinstance(one, int) else one for one in _listed(axis, given, where)]
    return tuple(_text(value, axis, where) for value in _listed(axis, given, where))


def _fault_names(value: Any, where: str) -> tuple[str, ...]:
    """Return one value of the faults axis: a name, "none", or several names."""
    if isinstance(value, str):
        return () if value == "none" else (value,)
    return tuple(_text(name, "faults", where) for name in _listed("faults", value, where))


def _listed(key: str, given: Any, where: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UsageError(f"{where}: {key}: expected a list of one at least, not {given!r}")
    if len({str(one) for one in given}) < len(given):
        raise UsageError(f"{where}: {key}: one of them is there twice")
    return given


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: {key}: expected a name, not {value!r}")
    return value


def _number(value: Any, key: str, least: int, most: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{where}: {key} {value!r}: expected {least} to {most}")
    return value


def _checked_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where}: name {name!r} cannot name a folder: use letters, digits and -")
    return name


def _campaign(given: Any, where: str, axes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check campaign keys; they must not set what an axis sets."""
    if not isinstance(given, dict):
        raise UsageError(f"{where}: expected a table of keys of a campaign file")
    taken = {KEY_OF_AXIS[axis]: axis for axis in axes}
    for key in given:
        if key in taken:
            raise UsageError(f"{where}: {key} is set by the axis {taken[key]}")
        if key in OWN_KEYS:
            raise UsageError(f"{where}: {key} is none that a matrix can set")
        if (unsupported := _date_or_time(given[key])) is not None:
            raise UsageError(f"{where}: {key}: {unsupported} is no value of a campaign")
    return given


def _date_or_time(value: Any) -> str | None:
    """Return a date or time in a TOML value as text, or None: no campaign key takes one."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return next((found for one in value if (found := _date_or_time(one)) is not None), None)
    return None if isinstance(value, str | int | float) else str(value)


def _rules(given: Any, name: str, where: str, axes: Mapping[str, Any]) -> tuple[Rule, ...]:
    if not isinstance(given, list):
        raise UsageError(f"{where}: expected [[{name}]] tables")
    own = "campaign" if name == "adjust" else "why"
    rules = []
    for number, table in enumerate(given, 1):
        here = f"{where}: {name} {number}"
        if not isinstance(table, dict):
            raise UsageError(f"{here}: expected a table")
        for key in table:
            if key not in (*axes, own):
                raise UsageError(f"{here}: {unknown_name('key', key, (*axes, own))}")
        picked = {
            axis: tuple(str(one) for one in _listed(axis, table[axis], here))
            for axis in axes
            if axis in table
        }
        for axis, values in picked.items():
            _check_picked(axis, values, axes[axis], here)
        if not picked:
            raise UsageError(f"{here}: names no axis, so its cells are not known")
        campaign = _campaign(table.get("campaign", {}), here, axes)
        rules.append(Rule(picked, campaign, str(table.get("why", ""))))
    return tuple(rules)


def _check_picked(axis: str, picked: Sequence[str], values: Sequence[Any], where: str) -> None:
    there = [name for value in values for name in (value if axis == "faults" else (value,))]
    for name in picked:
        if name not in there:
            raise UsageError(f"{where}: {unknown_name(f'value of {axis}', name, set(there))}")
