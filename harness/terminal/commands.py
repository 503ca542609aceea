"""The commands: each is a function whose docstring is its help, imported only when it is used.

Importing all of them would take over a second of processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cyclopts import App, Group
from cyclopts.help import HelpEntry, HelpPanel, PlainFormatter
from rich.console import Console, ConsoleOptions
from rich.text import Text

from shaketable.harness.contracts.program import IS_CHECKOUT, PROGRAM, version
from shaketable.harness.terminal.output import Output, show_rows

IN_A_CHECKOUT: Final = "./shaketable"
"""What docstrings call the program; help shows what it was called by."""
HELP: Final = """Shakes a replicated system with faults, and checks whether it kept its
promises.

Start with:
./shaketable run

It runs three brokers on this machine for about a minute while they are killed, paused and cut off
from each other, checks everything that their clients saw, and writes a report.

Exit codes: 0 valid, 1 invalid, 2 unknown, 254 bad usage, 255 the harness failed."""
HELP_IN_A_CHECKOUT: Final = f"""{HELP}

./shaketable test runs the project's own tests, ./shaketable docs builds its documentation."""


# The layout of `--help`: two aligned columns under plain headings, no boxes.


class PlainPanelFormatter(PlainFormatter):
    """Renders a panel as a heading and a grid; usage and description stay plain text."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one panel (commands, arguments or a group of options)."""
        entries = [entry for entry in panel.entries if entry.display_labels]
        if not entries:
            return
        console.print(Text(str(panel.title), style="bold"))
        show_rows(console, [(_label(entry), _description(entry)) for entry in entries])
        console.print()

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """Print a command's description, reflowed to the width of the terminal."""
        if text := reflow(plain(description)):
            console.print(Text(text), highlight=False)
            console.print()


def _label(entry: HelpEntry) -> str:
    if entry.positional_label:  # an argument is named by its label alone
        return entry.positional_label
    names = ", ".join((*entry.shorts, *entry.names))
    return f"{names} {entry.metavar}" if entry.metavar else names


def _description(entry: HelpEntry) -> Text:
    text = Text(reflow(plain(entry.description)))
    if entry.default is not None:
        text.append(f" [{entry.default}]", style="dim")
    return text


def plain(renderable: Any) -> str:
    """Return the text of a renderable of cyclopts, with the program's name as it was called."""
    inner = getattr(renderable, "primary_renderable", renderable)
    text = str(getattr(inner, "plain", inner) or "").strip()
    return text.replace(IN_A_CHECKOUT, PROGRAM)


def reflow(text: str) -> str:
    """Join the lines of each paragraph; keep the lines of paragraphs that show commands."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        is_listing = any(line.startswith(PROGRAM) for line in lines)
        paragraphs.append("\n".join(lines) if is_listing else " ".join(lines))
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the list of commands shows it.

    Attributes:
        place: module of harness.terminal and function.
        usage: the usage text after its name.
        summary: the first sentence of its help.
    """

    name: str
    place: str
    usage: str
    summary: str


COMMANDS: Final = (
    Command(
        "run",
        "run:run",
        "[CAMPAIGN.toml] [OPTIONS]",
        "Run a campaign: start a group, inject faults, heal it, check what clients saw, report.",
    ),
    Command(
        "analyze",
        "run:analyze",
        "RUN [OPTIONS]",
        "Judge a stored run again: export its history, check it, write the report.",
    ),
    Command(
        "report",
        "run:report",
        "RUN",
        "Write a stored run's report again, from its verdicts.",
    ),
    Command(
        "list",
        "listing:list_",
        "[KIND]",
        "List targets, faults, scenarios, workloads, checkers, ... or the planted bugs.",
    ),
    Command(
        "new",
        "targets:new",
        "target NAME [OPTIONS]",
        "Create the files of a target of your own: a table in shaketable.toml, a client, a test.",
    ),
    Command(
        "install",
        "targets:install",
        "[TARGET[@VERSION]...] [OPTIONS]",
        "Install third-party targets into a cache, or list them.",
    ),
    Command(
        "museum",
        "museum:museum",
        "[NAME...] [OPTIONS]",
        "Reproduce published bugs of real systems, or list them.",
    ),
    Command(
        "crash-points",
        "crash_points:crash_points",
        "[OPTIONS]",
        "Cut the power at each write, fsync, rename, ... of a node: does the group survive?",
    ),
    Command(
        "check",
        "histories.check:check",
        "PATH... [OPTIONS]",
        "Check recorded histories: did the clients see what a sequential object could have "
        "answered?",
    ),
    Command(
        "watch",
        "histories.watch:watch",
        "FILE --model NAME [OPTIONS]",
        "Check a history while another program appends to it; report the first violation at once.",
    ),
    Command(
        "gate",
        "gate:gate",
        "RUN... [OPTIONS]",
        "Gate CI on stored runs: a policy decides the exit code.",
    ),
    Command(
        "compare",
        "gate:compare",
        "A B [OPTIONS]",
        "Compare two runs: what got worse from A to B, by how much, and how sure is that?",
    ),
    Command(
        "serve",
        "serve:serve",
        "[OPTIONS]",
        "Show the runs of a store in a browser: search, reports, runs in progress, trends.",
    ),
    Command(
        "calibrate",
        "calibrate:calibrate",
        "[OPTIONS]",
        "Hunt the planted bugs, and run the correct system: what is found, what is missed?",
    ),
    Command(
        "matrix",
        "matrix:matrix",
        "[FILE.toml] [OPTIONS]",
        "Run a campaign for each cell of a matrix of targets, workloads, faults, worlds, seeds.",
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "[--json]",
        "Try every fault in every world on this machine, and say what works.",
    ),
    Command(
        "heal",
        "heal:heal",
        "[STORE|RUN]",
        "Undo what a killed harness left behind.",
    ),
    Command(
        "completion",
        "completion:completion",
        "[bash|zsh|fish] [--install]",
        "Print or install completion of commands, options and names for your shell.",
    ),
    Command(
        "up",
        "up:up",
        "[OPTIONS]",
        "Start brokers and name servers on this machine to try out; Ctrl-C stops all of them.",
    ),
    Command(
        "simulate",
        "simulations.simulation:simulate",
        "[OPTIONS]",
        "Run the system's own code on a simulated clock, network and disk, seed by seed.",
    ),
    Command(
        "replay",
        "simulations.simulation:replay",
        "SEED|FILE [OPTIONS]",
        "Replay a seed, or a recording of a real node, step by step with the nodes' states.",
    ),
    Command(
        "shrink",
        "simulations.simulation:shrink",
        "[SEED|FILE] [OPTIONS]",
        "Minimise a failing run, and tell its story: what was promised, and how it was broken.",
    ),
)


def _app(*, is_summary: bool) -> App:
    """Create the app with all commands. A command with `help` shows only that as its help."""
    made = App(
        name="shaketable",
        console=Output(highlight=False),
        version=version,
        help=HELP_IN_A_CHECKOUT if IS_CHECKOUT else HELP,
        help_format="plaintext",
        help_formatter=PlainPanelFormatter(),
        usage=f"Usage: {PROGRAM} COMMAND [OPTIONS]",
        suppress_keyboard_interrupt=False,  # `harness.cli` maps it to a line and an exit code
        group_commands=Group("Commands", sort_key=0),
        group_arguments=Group("Arguments", sort_key=0),
        group_parameters=Group("Options", sort_key=1),
    )
    for command in COMMANDS:
        made.command(
            f"shaketable.harness.terminal.{command.place}",
            name=command.name,
            help=command.summary if is_summary else None,
            usage=f"Usage: {PROGRAM} {command.name} {command.usage}",
        )
    return made


app: Final = _app(is_summary=False)
"""Runs the commands, and shows the help of each."""


def app_for(arguments: Sequence[str]) -> App:
    """Return the app for a command line; without a command, the one that lists the commands."""
    return app if _command_of(arguments) else _app(is_summary=True)


def help_of(arguments: Sequence[str]) -> str:
    """Return the command line that shows the help for these arguments: of their command, if any."""
    command = _command_of(arguments)
    return " ".join((PROGRAM, *([command.name] if command else ()), "--help"))


def _command_of(arguments: Sequence[str]) -> Command | None:
    return next((each for each in COMMANDS if list(arguments[:1]) == [each.name]), None)
