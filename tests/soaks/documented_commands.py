"""Every command of docs/using.md, at the size that the page gives, in a folder of its own.

    .venv/bin/python -m tests.soaks.documented_commands --folder /tmp/commands
    .venv/bin/python -m tests.soaks.documented_commands --folder /tmp/commands --only simulate

A command that goes on until Ctrl-C (`up`, `serve`) gets it after a while. What is done is kept in
`commands.jsonl` in the folder: a soak that was cut off goes on behind it. Some commands take hours
(`--longest` leaves out those that take more minutes than it says).

Exit codes: 0 each command ended with the exit code that the page leads one to expect, 1 one did
not.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)
DONE: Final = "commands.jsonl"
ENDLESS_S: Final = 60.0
"""How long a command that would go on for ever is left alone."""
FILES: Final = {
    "history.edn": "{:process 0, :type :invoke, :f :write, :value 1, :index 0, :time 1}\n"
    "{:process 0, :type :ok, :f :write, :value 1, :index 1, :time 2}\n",
    "history.jsonl": '{"process": 0, "type": "invoke", "f": "write", "value": 1}\n'
    '{"process": 0, "type": "ok", "f": "write", "value": 1}\n',
    "jepsen.log": "INFO  jepsen.util - 0\t:invoke\t:write\t1\n"
    "INFO  jepsen.util - 0\t:ok\t:write\t1\n",
    "queue.jsonl": '{"process": 0, "type": "invoke", "f": "enqueue", "value": 1}\n'
    '{"process": 0, "type": "ok", "f": "enqueue", "value": 1}\n',
}
"""What stands in for the reader's own histories."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a command that begins like this does: its exit codes, and how many minutes it takes."""

    codes: tuple[int, ...] = (0,)
    minutes: float = 1.5
    is_endless: bool = False


ELSE: Final = Expected()
EXPECTED: Final[dict[str, Expected]] = {
    "run --mutant": Expected((1,)),
    "run --test-count 10": Expected(minutes=15),
    "run workloads/campaigns/leader-kills.toml": Expected(minutes=5),
    "analyze store/latest": Expected((0, 1)),  # of the planted bug, where the page has it first
    "check store/latest": Expected((0, 1)),
    "simulate --seeds 1000": Expected(minutes=15),
    "simulate --mutant": Expected((1,), minutes=3),
    "shrink --mutant": Expected((1,)),
    "shrink 42 --mutant": Expected((1,), minutes=6),
    "shrink store/": Expected((1,), minutes=2),
    "matrix every-fault": Expected(minutes=60),
    "calibrate --mutant": Expected(minutes=5),
    "calibrate --family": Expected(minutes=30),
    "calibrate --jobs 2": Expected(minutes=600),
    "test": Expected(minutes=25),
    "up": Expected((0, 130), is_endless=True),
    "serve": Expected((0, 130), is_endless=True),
}
"""By how a command begins; the longest beginning counts."""


def commands() -> list[str]:
    """Return the page's commands in their order, without `./shaketable`."""
    text = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    found = [
        line.removeprefix("./shaketable").strip()
        for block in BLOCK.findall(text)
        for line in block.splitlines()
        if line.startswith("./shaketable")
    ]
    return list(dict.fromkeys(found))


def expected(command: str) -> Expected:
    """Return what a command is to do."""
    begins = [start for start in EXPECTED if command == start or command.startswith(start)]
    return EXPECTED[max(begins, key=len)] if begins else ELSE


def prepare(folder: Path) -> None:
    """Put there what its reader is said to have."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    shutil.copytree(ROOT / "workloads", folder / "workloads", dirs_exist_ok=True)


def as_here(command: str, folder: Path) -> list[str]:
    """Return the command's words, its examples of a run's folder replaced by one that is there."""
    runs = sorted((folder / "store" / "quick").glob("2*"))
    words = shlex.split(command)
    if words[:1] == ["compare"] and len(runs) > 1:
        return ["compare", str(runs[0]), str(runs[-1])]
    return words


def run(command: str, folder: Path) -> tuple[int, float]:
    """Run one command; return its exit code and its seconds. Its output goes to a file."""
    began_s = time.monotonic()
    name = re.sub(r"[^a-z0-9]+", "-", command.lower()).strip("-")
    with (folder / f"{name or 'none'}.txt").open("wb") as output:
        process = subprocess.Popen(
            [str(ROOT / "shaketable"), *as_here(command, folder)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            if expected(command).is_endless:
                time.sleep(ENDLESS_S)
                process.send_signal(signal.SIGINT)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return code, time.monotonic() - began_s


def main() -> int:
    """Run what has not been run yet; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", help="commands that begin like this")
    parser.add_argument("--longest", type=float, default=1e9, metavar="MINUTES")
    options = parser.parse_args()
    prepare(options.folder)
    journal = options.folder / DONE
    done = {}
    if journal.exists():
        done = {line["command"]: line for line in map(json.loads, journal.open(encoding="utf-8"))}
    failed = 0
    for command in commands():
        if options.only and not command.startswith(options.only):
            continue
        if command not in done:
            if expected(command).minutes > options.longest:
                sys.stdout.write(f"left out  {command}\n")
                continue
            code, took_s = run(command, options.folder)
            is_right = code in expected(command).codes
            done[command] = {"command": command, "code": code, "s": took_s, "right": is_right}
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[command]) + "\n")
        one = done[command]
        failed += not one["right"]
        word = "as it says" if one["right"] else "WRONG"
        sys.stdout.write(f"{word:<10} exit {one['code']:<4}{one['s']:>7.0f} s  {command}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
