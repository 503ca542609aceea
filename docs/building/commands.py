"""The reference of commands and their options, made of the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from cyclopts import App, Argument
from cyclopts.parameter import Parameter

from docs.building.documented import attributes, one_line
from docs.building.tables import code, prose, table
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.terminal.commands import COMMANDS, IN_A_CHECKOUT, Command, app

_PROGRAM: Final = "shaketable"
_SECTION: Final = re.compile(r"^\s*(?:Args|Returns|Raises):$", re.MULTILINE)


def page() -> str:
    """Return the page of all commands, each with its arguments, options and defaults."""
    parts = [
        "# Commands\n",
        "Each has `--help`. Where a checkout is used without an installation, the program is"
        " `./shaketable`. Options in seconds take durations, such as `90s`, `1m30s` or `2h`.\n",
        table(
            ("command", "what for"),
            [(f"[{each.name}](#{each.name})", prose(each.summary)) for each in COMMANDS],
        ),
    ]
    parts += [_command(each) for each in COMMANDS]
    return "\n".join(parts)


def exit_codes() -> str:
    """Return the page of the exit codes."""
    told = attributes(ExitCode)
    rows = [(code(str(int(each))), prose(told[each.name])) for each in ExitCode]
    return (
        "# Exit codes\n\n"
        + table(("code", "means"), rows)
        + "\nFor several runs the worst counts: 255, 254, 1, 2, 0.\n"
    )


def _command(command: Command) -> str:
    made = app[command.name]
    parts = [
        f"## {command.name}\n",
        f"```console\n{_PROGRAM} {command.name} {command.usage}\n```\n",
        _description(made),
    ]
    arguments = [
        each for each in made.assemble_argument_collection(parse_docstring=True) if each.show
    ]
    groups: dict[str, list[Argument]] = {}
    for each in arguments:
        groups.setdefault(_group(each.parameter), []).append(each)
    for name, members in groups.items():
        parts += [f"### {command.name}: {name[0].lower()}{name[1:]}\n", _table(members)]
    return "\n".join(parts)


def _description(made: App) -> str:
    """Return a command's help without the sections about its arguments, commands as code."""
    text = _SECTION.split(made.help or "")[0].replace(IN_A_CHECKOUT, _PROGRAM)
    parts = []
    for paragraph in text.strip().split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        shown = [line for line in lines if line.startswith(f"{_PROGRAM} ")]
        told = one_line(" ".join(line for line in lines if line not in shown))
        parts += [prose(told)] if told else []
        parts += ["```console\n" + "\n".join(shown) + "\n```"] if shown else []
    return "\n\n".join(parts) + "\n"


def _group(parameter: Parameter) -> str:
    groups = parameter.group if isinstance(parameter.group, Iterable) else (parameter.group,)
    return next(str(getattr(group, "name", group)) for group in groups)


def _table(arguments: list[Argument]) -> str:
    rows = [(_names(each), prose(_help(each)), _default(each)) for each in arguments]
    return table(("name", "what", "default"), rows)


def _help(argument: Argument) -> str:
    return (argument.parameter.help or "").replace(IN_A_CHECKOUT, _PROGRAM)


def _names(argument: Argument) -> str:
    names = ", ".join(code(name) for name in argument.names)
    metavar = argument.parameter.metavar
    return f"{names} {metavar}" if metavar else names


def _default(argument: Argument) -> str:
    shown, value = argument.parameter.show_default, argument.field_info.default
    if callable(shown):
        return code(str(shown(value)))
    if shown is False or value in (None, argument.field_info.empty, False, ()):
        return ""
    return code(str(value))
