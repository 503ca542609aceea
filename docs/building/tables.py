"""Tables and texts in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a column in which no row has a text is left out."""
    kept = [list(row) for row in rows]
    columns = [n for n in range(len(heads)) if any(row[n] for row in kept)]
    lines = [[heads[n] for n in columns], ["---"] * len(columns)]
    lines += [[cell(row[n]) for n in columns] for row in kept]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return a text as a table's cell takes it."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text in the type of code; nothing for nothing."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a plain text as Markdown that shows it as it is; what it quotes stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a lone backtick quotes nothing
        return text.replace("`", "\\`").replace("<", "&lt;")
    for n in range(0, len(parts), 2):
        for sign in "*_[]<":
            parts[n] = parts[n].replace(sign, "&lt;" if sign == "<" else f"\\{sign}")
    return "`".join(parts)
