"""Discover plug-ins: built-in ones by scanning packages, external ones by entry points.

Targets may also be described by a file (`harness.described`).

A built-in plug-in is the `PLUGIN` of a module of harness.targets, harness.faults, workloads,
checkers or checkers.models, or one of its `PLUGINS`. An external one is an entry point of the
group shaketable.<kind> that names such an object.

Source: DESIGN.md section 1 ("Plug-ins").
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from shaketable.harness import described
from shaketable.harness.contracts import plugins
from shaketable.harness.contracts.abilities import TakesOptions
from shaketable.harness.contracts.capabilities import FAMILIES, Capability, family_of, needs_of
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.plugins import Target
from shaketable.harness.untrusted_text import error_text, plain, short_repr

PACKAGES: Final[Mapping[str, str]] = {
    "targets": "shaketable.harness.targets",
    "faults": "shaketable.harness.faults",
    "workloads": "shaketable.workloads",
    "checkers": "shaketable.checkers",
    "models": "shaketable.checkers.models",
}
PACKAGES_BELOW: Final[Mapping[str, tuple[str, ...]]] = {
    "checkers": tuple(
        f"shaketable.checkers.{part}" for part in ("anomalies", "logs", "queues", "transactions")
    ),
}
"""Further packages that hold plug-ins of a kind."""
PROTOCOLS: Final[Mapping[str, type]] = {
    "targets": plugins.Target,
    "faults": plugins.Fault,
    "workloads": plugins.Workload,
    "checkers": plugins.Checker,
}
PROTOCOLS_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    "models": ("shaketable.checkers.models.model", "Model"),
}
"""Protocols that are imported only when needed: module and name."""
ENTRY_POINT_GROUP: Final = "shaketable.{kind}"

PASS_THROUGH: Final = (KeyboardInterrupt, GeneratorExit)
"""What may pass through a plug-in's code: the user or the interpreter interrupts it."""

_excluded: Final[set[str]] = set()


@functools.cache
def find(kind: str) -> Mapping[str, Any]:
    """Return all plug-ins of a kind by name; the kinds are those of PACKAGES.

    Raises:
        HarnessError: a plug-in cannot be imported or breaks its protocol; one line names it
            and the cause.
    """
    found: dict[str, Any] = {}
    loaded = [*_built_in(kind), *_external(kind)]
    for source, plugin in loaded:
        require_conforming(kind, source, plugin)
    for source, plugin in [*loaded, *_described(kind)]:
        other = found.setdefault(plugin.name, plugin)
        if other is not plugin:
            raise _clash(kind, plugin.name, source)
    return dict(sorted(found.items()))


def get(kind: str, name: str) -> Any:
    """Return one plug-in; of external ones, import only the entry points of that name if possible.

    Raises:
        UsageError: there is no such plug-in; the message has the nearest name and all names. Or
            it is described by a file that is broken.
        HarnessError: as for `find`, for the plug-ins that it imports; also if two have that name.
    """
    ours = _built_in_named(kind, name)
    named = [*ours, *_external_named(kind, name)]
    for source, plugin in named[1:]:
        if plugin is not named[0][1]:
            raise _clash(kind, name, source)
    if named:
        return named[0][1]
    for _, plugin in _described(kind):
        if plugin.name == name:
            return plugin
    found = find(kind)
    if name not in found:
        text = unknown_name(kind.removesuffix("s"), name, found)
        if kind == "targets" and described.nearest_file(Path.cwd()) is None:
            text += f"; no {described.FILE_NAME} is here or in a folder above"
        raise UsageError(text)
    return found[name]


def external_entry_points(kind: str) -> list[EntryPoint]:
    """Return the entry points of a kind by name, without the excluded ones."""
    found: list[EntryPoint] = sorted(
        _installed(tuple(sys.path)).select(group=ENTRY_POINT_GROUP.format(kind=kind))
    )
    return [point for point in found if source_of(point) not in _excluded]


@functools.cache
def _installed(_path: tuple[str, ...]) -> Any:
    """Return all entry points, to `select` from: 3.11 and later versions have different types.

    Cached: a scan reads a file of every installed package.
    """
    return entry_points()


def clear_caches() -> None:
    """Scan again at the next call, since plug-ins may have been installed or removed."""
    find.cache_clear()
    _targets_of.cache_clear()
    _installed.cache_clear()
    _module_names.cache_clear()


def source_of(point: EntryPoint) -> str:
    """Return an entry point as its project's file declares it: "locks = locks:PLUGIN"."""
    return f"{point.name} = {point.value}"


def load(kind: str, point: EntryPoint) -> Any:
    """Return the plug-in of an entry point.

    Raises:
        HarnessError: it cannot be imported or breaks its protocol.
    """
    plugin = _loaded(point)
    require_conforming(kind, f"entry point {source_of(point)}", plugin)
    return plugin


def exclude_entry_points(sources: Iterable[str]) -> None:
    """Ignore these broken entry points (`source_of`) in this process.

    For `doctor`, which tries plug-ins one by one; a campaign reports a broken plug-in instead.
    """
    _excluded.update(sources)
    clear_caches()


def built_in(kind: str, name: str) -> Any | None:
    """Return a built-in plug-in, or None if none has that name. Imports no external one.

    Raises:
        HarnessError: a built-in plug-in cannot be imported.
    """
    return next((plugin for _, plugin in _built_in(kind) if plugin.name == name), None)


def built_ins(kind: str) -> list[str]:
    """Return the names of the built-in plug-ins. Raises as `built_in` does."""
    return [plugin.name for _, plugin in _built_in(kind)]


def is_built_in(kind: str, plugin: Any) -> bool:
    """Return whether a plug-in is built in."""
    module = type(plugin).__module__
    return any(module.startswith(f"{package}.") for package in _packages(kind))


def summary(plugin: Any) -> str:
    """Return a plug-in's `summary`, else the first line of its docstring or its module's."""
    return plain(plugin, _summary)


def _summary(plugin: Any) -> str:
    if isinstance(summary_text := getattr(plugin, "summary", None), str):
        return summary_text
    cls = plugin if inspect.isclass(plugin) else type(plugin)
    own = cls.__dict__.get("__doc__") or ""
    if not own or own.startswith(f"{cls.__name__}("):
        # a dataclass without a docstring gets its signature
        own = getattr(inspect.getmodule(cls), "__doc__", None) or ""
    return own.strip().partition("\n")[0]


def _clash(kind: str, name: str, second: str) -> HarnessError:
    return HarnessError(f"{kind}: two plug-ins are named {name!r}: the second is {second}")


def _packages(kind: str) -> tuple[str, ...]:
    return (PACKAGES[kind], *PACKAGES_BELOW.get(kind, ()))


def _built_in(kind: str) -> list[tuple[str, Any]]:
    modules = [
        f"{package}.{name}"
        for package in _packages(kind)
        for name in _module_names(_imported(package))
    ]
    return [(module, plugin) for module in modules for plugin in _plugins_of(_imported(module))]


def _plugins_of(module: ModuleType) -> tuple[Any, ...]:
    """Return a module's plug-in, or all plug-ins of its table."""
    if hasattr(module, "PLUGIN"):
        return (module.PLUGIN,)
    return tuple(getattr(module, "PLUGINS", ()))


def _built_in_named(kind: str, name: str) -> list[tuple[str, Any]]:
    """Return built-in plug-ins of that name: those of the module so named, else of any module."""
    last = name.replace("-", "_")
    modules = [
        f"{package}.{last}"
        for package in _packages(kind)
        if last.isidentifier() and last in _module_names(_imported(package))
    ]
    found = [(module, plugin) for module in modules for plugin in _plugins_of(_imported(module))]
    found = [each for each in found or _built_in(kind) if getattr(each[1], "name", None) == name]
    for module, plugin in found:
        require_conforming(kind, module, plugin)
    return found


def _external_named(kind: str, name: str) -> list[tuple[str, Any]]:
    """Return external plug-ins whose entry point has their name."""
    named = [point for point in external_entry_points(kind) if point.name == name]
    loaded = [(f"entry point {source_of(point)}", load(kind, point)) for point in named]
    return [(source, plugin) for source, plugin in loaded if plugin.name == name]


def _external(kind: str) -> list[tuple[str, Any]]:
    return [
        (f"entry point {source_of(point)}", _loaded(point)) for point in external_entry_points(kind)
    ]


def _described(kind: str) -> list[tuple[str, Any]]:
    """Return the targets that a file in the current folder, or in one above it, describes."""
    file = described.nearest_file(Path.cwd()) if kind == "targets" else None
    return [] if file is None else [(str(file), target) for target in _targets_of(file)]


@functools.cache
def _targets_of(file: Path) -> tuple[Any, ...]:
    from shaketable.harness.described.running import targets_of  # noqa: PLC0415 - few have a file

    return targets_of(file)


@functools.cache
def _module_names(package: ModuleType) -> list[str]:
    return sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.ispkg)


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except PASS_THROUGH:
        raise
    except BaseException as error:
        raise HarnessError(f"cannot import {module}: {error_text(error)}") from error


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except PASS_THROUGH:
        raise
    except BaseException as error:  # such as SystemExit, from a script without a `__main__` guard
        raise HarnessError(
            f"cannot load the plug-in {source_of(point)}: {error_text(error)}"
        ) from error


def _protocol(kind: str) -> type:
    if kind in PROTOCOLS:
        return PROTOCOLS[kind]
    module, name = PROTOCOLS_ELSEWHERE[kind]
    protocol: type = getattr(_imported(module), name)
    return protocol


def require_conforming(kind: str, source: str, plugin: Any) -> None:
    """Check that a plug-in has every member of its protocol, and that its methods are callable.

    Raises:
        HarnessError: it does not conform; one line names it (`source`) and the problem.
    """
    protocol = _protocol(kind)
    try:
        problem = _member_error(protocol, plugin) or _value_error(kind, plugin)
    except PASS_THROUGH:
        raise
    except BaseException as error:  # its values may run the plug-in's code, too
        problem = f"it cannot be looked at: {error_text(error)}"
    if problem is not None:
        raise HarnessError(f"{source} is no {protocol.__name__}: {problem}")


def _member_error(protocol: type, plugin: Any) -> str | None:
    """Return which members of its protocol a plug-in lacks; None if it has all."""
    if inspect.isclass(plugin):
        return "it is a class, not an object of it"
    properties = [name for name, member in vars(protocol).items() if isinstance(member, property)]
    fields = [*protocol.__annotations__, *properties]
    methods = [name for name in vars(protocol) if not name.startswith("_") and name not in fields]
    members: dict[str, Any] = {}
    for name in fields + methods:
        try:
            members[name] = getattr(plugin, name)
        except AttributeError:
            continue
        except PASS_THROUGH:
            raise
        except BaseException as error:  # an attribute may run the plug-in's code
            return f"its {name} cannot be looked at: {error_text(error)}"
    lacking = [name for name in fields + methods if name not in members]
    uncallable = [name for name in methods if not callable(members.get(name, print))]
    if lacking or uncallable:
        what = [f"has no {', '.join(lacking)}"] if lacking else []
        return ", ".join([*what, *(f"{name} is no method" for name in uncallable)])
    if not isinstance(plugin.name, str) or not plugin.name:
        return f"its name is {short_repr(plugin.name)}"
    return None


def _value_error(kind: str, plugin: Any) -> str | None:
    """Return which attribute is invalid: checked here, else it would fail within a run."""
    if kind == "faults":
        needs: object = getattr(plugin, "needs", ())
        if not _are_names(needs):
            return f"its needs are {short_repr(needs)}, no set of words"
        unknown_needs = sorted(needs_of(plugin) - set(Capability))
        if unknown_needs:
            return (
                f"it needs an {unknown_name('word', str(unknown_needs[0]), map(str, Capability))}"
            )
        if family_of(plugin) not in FAMILIES:
            return f"it is of an {unknown_name('family', family_of(plugin), FAMILIES)}"
    if kind == "targets" and not isinstance(plugin.promises, plugins.Promises):
        return f"its promises are {short_repr(plugin.promises)}"
    if kind == "targets" and not isinstance(plugin.mutants, Mapping):
        return f"its mutants are {short_repr(plugin.mutants)}, no map of names to what they break"
    if kind == "workloads" and not _are_names(plugin.checkers):
        return f"its checkers are {short_repr(plugin.checkers)}, no names in a tuple"
    return None


def _are_names(value: Any) -> bool:
    """Return whether this is a collection of strings, and not one string."""
    is_many = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return is_many and all(isinstance(one, str) for one in value)


# The target of a campaign, with the options of its own that the campaign chooses.


def parse_options(given: Iterable[str]) -> dict[str, str]:
    """Return options by name, from texts such as "journal=off"; the last of a name counts.

    Raises:
        UsageError: one is not NAME=VALUE.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()) or "," in text:
            raise UsageError(f"--option {text}: expected NAME=VALUE without commas, as journal=off")
        found[name.strip()] = value.strip()
    return found


def target_with(name: str, options: tuple[str, ...]) -> Target:
    """Return a target with its options; always the same for the same ones, as it has a state.

    Raises:
        UsageError: there is no such target, or it has no such option, or not with that value.
        HarnessError: as `get`.
    """
    target: Target = get("targets", name)
    chosen = parse_options(options)
    if not chosen:
        return target
    return _configured(cast("Hashable", target), name, tuple(sorted(chosen.items())))


@functools.lru_cache(maxsize=64)
def _configured(target: Hashable, name: str, options: tuple[tuple[str, str], ...]) -> Target:
    if not isinstance(target, TakesOptions):
        raise UsageError(f"--option {options[0][0]}: {name} has no options of its own")
    return target.configured(dict(options))
