"""How `--help` looks: two aligned columns under plain headings, no boxes."""

from __future__ import annotations

from typing import Any

from cyclopts.help import HelpEntry, HelpPanel, PlainFormatter
from rich.console import Console, ConsoleOptions
from rich.text import Text

from shaketable.harness.terminal.grid import show_rows


class CalmFormatter(PlainFormatter):
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
        """Print a command's text, reflowed to the width of the terminal."""
        if text := reflow(plain(description)):
            console.print(Text(text), highlight=False)
            console.print()


def _label(entry: HelpEntry) -> str:
    if entry.positional_label:  # an argument is named by its label alone
        return entry.positional_label
    names = ", ".join((*entry.shorts, *entry.names))
    return f"{names} {entry.metavar}" if entry.metavar else names


def _description(entry: HelpEntry) -> Text:
    text = Text(plain(entry.description))
    if entry.default is not None:
        text.append(f" [{entry.default}]", style="dim")
    return text


def plain(renderable: Any) -> str:
    """Return the text of what cyclopts hands over, whatever it is wrapped in."""
    inner = getattr(renderable, "primary_renderable", renderable)
    return str(getattr(inner, "plain", inner) or "").strip()


def reflow(text: str) -> str:
    """Join the lines of each paragraph; lines that show a command stay lines."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        is_listing = any(line.startswith("./shaketable") for line in lines)
        paragraphs.append("\n".join(lines) if is_listing else " ".join(lines))
    return "\n\n".join(paragraphs)
