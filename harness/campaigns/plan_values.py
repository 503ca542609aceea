"""Check what a script sets in a fault's plan, before anything starts.

A value is converted to the type that the fault uses (a clock change, a link shape, ...), and the
fault has to resolve and describe the plan. What it cannot is refused in one line.

Source: the plans of harness.faults; `contracts.capabilities` for the types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shaketable.harness.contracts.capabilities import ClockChange, Damage, DiskFaultSpec, LinkShape
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Fault, Json
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS
from shaketable.harness.contracts.resources import Resources
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error

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
    names = ("delay_ms", "jitter_ms", "rate_bytes_s", "reset_every_ms")
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
    "harm": (DiskFaultSpec, _check_disk_fault),
    "resources": (Resources, _check_resources),
    "damage": (Damage, _check_damage),
}
