"""Text scripts: blocks of a command, `----`, and what it prints; comments start with `#`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def blocks(text: str) -> list[tuple[str, str, str]]:
    """(comment, command, expected) of each block."""
    out = []
    for chunk in text.strip().split("\n\n"):
        lines = chunk.splitlines()
        comment = "".join(line + "\n" for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        if rest:
            assert rest[1] == "----", f"no ---- after {rest[0]!r}"
            out.append((comment, rest[0], "\n".join(rest[2:])))
    return out


def check_script(path: Path, run: Callable[[str], str], *, is_rewritten: bool) -> None:
    """Run a script's commands; each has to print what stands there, or that is written anew."""
    written = []
    for comment, command, expected in blocks(path.read_text()):
        got = run(command)
        written.append(f"{comment}{command}\n----\n{got}\n")
        if not is_rewritten:
            assert got == expected, f"{path.name}: {command}"
    if is_rewritten:
        path.write_text("\n".join(written))
