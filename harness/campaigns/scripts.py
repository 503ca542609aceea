"""Scripts: faults that a campaign file names one by one, at a time or on an event.

    [[script]]
    fault = "kill"
    on = "leader-elected"      # or: at = 12.5, in seconds of the chaos phase
    after = 0.3
    duration = 2.0
    times = 3
    victims = ["leader"]
    # any other key overrides one of the fault's plan

Victims may be roles (`harness.campaigns.scenarios`): "@led" is the leader at the start of the
script's first fault, and `remember = "NAME"` lets later entries strike the same nodes again, as
"@NAME". Instead of a fault an entry may name a whole scenario and its start:

    [[script]]
    scenario = "figure-8"
    at = 5.0

Events: "leader-elected"; "fault:NAME" and "healed:NAME" (a fault of that name started, or was
undone); and "sync:N", "write:N", "read:N", "message:N": some node did that for the N-th time since
the chaos phase started. With `times` an event counts again and again.

Source: jepsen.generator (nemesis scripts); etcd's robustness tests (failpoints at a named point).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shaketable.harness.contracts.capabilities import (
    ClockChange,
    Damage,
    DiskFaultSpec,
    LinkShape,
    Resources,
)
from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.plugins import Fault, Json
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error

LEADER_ELECTED: Final = "leader-elected"
FAULT_BEGAN: Final = "fault"
FAULT_HEALED: Final = "healed"
COUNTED: Final = ("sync", "write", "read", "message")
"""What nodes themselves count (`contracts.capabilities.CountsEffects`)."""
TIMES_MAX: Final = 10_000
STEPS_MAX: Final = 1_000
_KIND = r"message:[A-Z][A-Za-z]{0,63}"
"""Messages of one kind, by the target's own name for it: message:PushRequest."""
_COUNTED = re.compile(rf"({'|'.join(COUNTED)}|{_KIND}):([1-9][0-9]{{0,11}})")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a script.

    Attributes:
        fault: its name.
        at: its start, in seconds of the chaos phase; None: see `on`.
        on: the event that starts it.
        after: delay after the event, in seconds.
        duration: how long it lasts, in seconds.
        times: for how many of these events it is repeated.
        victims: as the campaign's, or roles; () for the campaign's own.
        remember: a name for its victims in later steps; "": none.
        scenario: the name of a scenario, instead of a fault; "": it is a fault.
        plan: values that override the fault's plan.
    """

    fault: str = ""
    at: float | None = None
    on: str | None = None
    after: float = 0.0
    duration: float = 2.0
    times: int = 1
    victims: tuple[str, ...] = ()
    remember: str = ""
    scenario: str = ""
    plan: dict[str, Any] = {}

    def __str__(self) -> str:
        what = self.fault or self.scenario
        return f"{what} on {self.on}" if self.on is not None else f"{what} at {self.at}"


_KEYS = tuple(name for name in Step.__struct_fields__ if name != "plan")


def read_steps(value: Any, where: str) -> tuple[Step, ...]:
    """Parse the [[script]] tables of a campaign file.

    Raises:
        UsageError: they are invalid; the line states which entry, and what was expected.
    """
    if isinstance(value, tuple) and all(isinstance(step, Step) for step in value):
        return value
    if not isinstance(value, list) or len(value) > STEPS_MAX:
        raise UsageError(f"{where}: script: expected [[script]] tables, {STEPS_MAX} at most")
    return tuple(_read(table, f"{where}: script {n}") for n, table in enumerate(value, 1))


def write_steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return the tables that `read_steps` reads back as the same steps."""
    defaults = msgspec.to_builtins(Step())
    tables = []
    for step in steps:
        given = msgspec.to_builtins(step)
        named = () if step.scenario else ("fault",)
        own = {key: given[key] for key in _KEYS if key in named or given[key] != defaults[key]}
        tables.append({**own, **given["plan"]})
    return tables


def check_event(on: str, faults: Iterable[str], where: str) -> None:
    """Check that there is such an event.

    Raises:
        UsageError: there is not.
    """
    kind, _, name = on.partition(":")
    if on == LEADER_ELECTED or _COUNTED.fullmatch(on):
        return
    if kind in (FAULT_BEGAN, FAULT_HEALED) and name:
        if name not in faults:
            raise UsageError(f"{where}: on {on!r}: {unknown_name('fault', name, faults)}")
        return
    known = [LEADER_ELECTED, *(f"{kind}:NAME" for kind in (FAULT_BEGAN, FAULT_HEALED))]
    known += [f"{kind}:N" for kind in (*COUNTED, "message:KIND")]
    raise UsageError(f"{where}: {unknown_name('event', on, known)}")


def counted(on: str) -> tuple[str, int] | None:
    """Return ("sync", 100) for "sync:100"; None for an event that nodes do not count.

    For "message:VoteRequest:2" that is ("message:VoteRequest", 2).
    """
    match = _COUNTED.fullmatch(on)
    return None if match is None else (match[1], int(match[2]))


def _read(table: Any, where: str) -> Step:
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: expected a table with a fault's name as `fault`")
    if isinstance(table.get("scenario"), str):
        _check_scenario(table, where)
    elif not isinstance(table.get("fault"), str):
        raise UsageError(f"{where}: expected a table with a fault's name as `fault`")
    own = {key: value for key, value in table.items() if key in _KEYS}
    if isinstance(own.get("victims"), str):
        own["victims"] = [name.strip() for name in own["victims"].split(",")]
    plan = {key: value for key, value in table.items() if key not in _KEYS}
    try:
        step = msgspec.convert({**own, "plan": plan}, Step)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {str(error).replace('`', '')}") from error
    if (step.at is None) == (step.on is None):
        raise UsageError(f"{where}: expected `at` (seconds) or `on` (an event), one of them")
    if step.at is not None and step.times != 1:
        raise UsageError(f"{where}: `times` is for events")
    _check_times(step, where)
    return step


def _check_scenario(table: Mapping[str, Any], where: str) -> None:
    for key in table:
        if key not in ("scenario", "at"):
            raise UsageError(f"{where}: a scenario has no {key!r}: expected `scenario` and `at`")


def _check_times(step: Step, where: str) -> None:
    for name, value, least in (
        ("at", step.at or 0.0, 0.0),
        ("after", step.after, 0.0),
        ("duration", step.duration, 0.05),
    ):
        if not least <= value <= 1e6:  # also refuses NaN
            raise UsageError(f"{where}: {name} {value:g}: expected {least:g} or more, in seconds")
    if not 1 <= step.times <= TIMES_MAX:
        raise UsageError(f"{where}: times {step.times}: expected 1 to {TIMES_MAX}")


# ---- what a script sets in a fault's plan: checked before anything starts ----------------------
#
# A value is converted to the type that the fault uses (a clock change, a link shape, ...), and the
# fault has to resolve and describe the plan. What it cannot is refused in one line.
#
# Source: the plans of harness.faults; `contracts.capabilities` for the types.

ERRORS: Final = ("", "EIO", "ENOSPC")
"""The errors that a node's disk can be made to return."""
RATE_MAX: Final = 1000.0
NUMBER_MAX: Final = 1e9
PAUSES: Final = ("down_ms", "up_ms")
"""Numbers of plans that must not be 0, which would make a busy loop."""


def check_values(
    fault: Fault, generated: Json, own: Mapping[str, Any], nodes: Sequence[str], options: Json
) -> None:
    """Check the values `own` that override generated ones of a plan.

    Args:
        fault: the plan's fault.
        generated: the generated plan.
        own: what the script sets; keys of the plan.
        nodes: of the group.
        options: the options that configure faults.

    Raises:
        UsageError: the fault does not accept one of them, or their combination.
    """
    for key, value in own.items():
        try:
            _check_value(fault, key, value, generated[key], nodes, options)
        except (TypeError, ValueError) as error:  # msgspec's errors are of these
            why = str(error).replace("`", "").splitlines()[0]
            raise UsageError(f"{key} of {fault.name} cannot be {value!r}: {why}") from error
    plan = {**generated, **own}
    try:
        with as_plugin_error():
            for leader in (nodes[-1], None):
                fault.describe(plan)
                fault.describe(fault.aim(dict(plan), nodes, leader))
    except PlugInError as error:
        values = ", ".join(f"{key} = {value!r}" for key, value in own.items())
        raise UsageError(f"{fault.name} cannot be done with {values or plan}: {error}") from error


def _check_value(
    fault: Fault, key: str, value: Any, generated: Any, nodes: Sequence[str], options: Json
) -> None:
    if fault.name not in BUILT_IN_FAULTS:
        return  # an external plug-in checks its own plan
    if key == "variant":
        msgspec.convert(value, str)
        fault.configured({**options, "victims": [value]})
    elif key == "order":
        if sorted(msgspec.convert(value, list[str])) != sorted(nodes):
            raise ValueError(f"expected all of {', '.join(nodes)}, in some order")
    elif key in _TYPES:
        kind, check = _TYPES[key]
        check(msgspec.convert(kind(**msgspec.convert(value, dict[str, Any])).to_json(), kind))
    else:
        _check_like(key, value, generated)


def _check_like(key: str, value: Any, generated: Any) -> None:
    """Check that a plain value has the type of the generated one: number or text."""
    if isinstance(generated, bool | str):
        msgspec.convert(value, type(generated))
    elif isinstance(generated, int | float):
        _within({key: msgspec.convert(value, float)}, 1.0 if key in PAUSES else 0.0)
    elif isinstance(generated, list) and generated and isinstance(generated[0], int | float):
        numbers = msgspec.convert(value, list[float])
        if not numbers:
            raise ValueError("expected one number at least")
        _within({f"{key}[{n}]": number for n, number in enumerate(numbers)}, 0.0)


def _within(numbers: Mapping[str, float | None], least: float, most: float = NUMBER_MAX) -> None:
    for name, number in numbers.items():
        if number is not None and not least <= number <= most:  # also refuses NaN
            raise ValueError(f"{name}: expected {least:g} to {most:g}, not {number:g}")


def _check_change(change: ClockChange) -> None:
    _within({"rate": change.rate}, 0.0, RATE_MAX)
    _within({"offset_ms": change.offset_ms}, -NUMBER_MAX * 1e3, NUMBER_MAX * 1e3)
    _within({"strobe_ms": change.strobe_ms}, 0.0)


def _check_shape(shape: LinkShape) -> None:
    shares = {name: getattr(shape, name) for name in ("loss", "duplicate", "reorder", "corrupt")}
    _within(shares, 0.0, 1.0)
    names = ("delay_ms", "jitter_ms", "rate_bytes_s", "mtu_bytes", "reset_every_ms")
    _within({name: getattr(shape, name) for name in names}, 0.0)


def _check_disk_fault(fault: DiskFaultSpec) -> None:
    if fault.error not in ERRORS:
        raise ValueError(f"error: expected one of {', '.join(ERRORS[1:])}, not {fault.error!r}")
    _within({"nth": fault.nth, "times": fault.times, "delay_ms": fault.delay_ms}, 0.0)


def _check_resources(taken: Resources) -> None:
    _within({"cpu_share": taken.cpu_share}, 0.01, 1.0)
    _within({"slice_ms": taken.slice_ms}, 1.0)
    memory = {"memory_spare_bytes": taken.memory_spare_bytes}
    _within({**memory, "descriptors_spare": taken.descriptors_spare}, 0.0, math.inf)
    _within({"callers": taken.callers}, 0.0, 100_000)


def _check_damage(damage: Damage) -> None:
    _within({"bytes_": damage.bytes_}, 1.0)


_TYPES: Final[Mapping[str, tuple[Any, Callable[[Any], None]]]] = {
    "change": (ClockChange, _check_change),
    "link_shape": (LinkShape, _check_shape),
    "disk_fault": (DiskFaultSpec, _check_disk_fault),
    "resources": (Resources, _check_resources),
    "damage": (Damage, _check_damage),
}
