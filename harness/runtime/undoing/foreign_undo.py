"""Undoes a third-party fault in its own process: it may hang, or end Python.

`python -P -m shaketable.harness.runtime.undoing.foreign_undo PARENT_PID` reads {"fault", "undo",
"nodes"} as JSON, calls that fault's undo with an ended world, and prints as JSON why that failed,
or null. It ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Final

import trio

from shaketable.harness import discovery, guard
from shaketable.harness.contracts.plugins import Fault, Json
from shaketable.harness.error_output import one_line
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error
from shaketable.harness.runtime.processes import children
from shaketable.harness.runtime.undoing.ended_world import EndedWorld

UNDO_TIMEOUT_S: Final = 15.0
START_TIMEOUT_S: Final = 15.0
"""How long Python, and the plug-in's own imports, may take."""


def undo(name: str, undo_: Json, nodes: Sequence[str]) -> str | None:
    """Undo a fault by its name; return why that failed, None if it did not. For the main thread."""
    program = [
        sys.executable,
        "-P",
        "-m",
        "shaketable.harness.runtime.undoing.foreign_undo",
        str(os.getpid()),
    ]
    given = json.dumps({"fault": name, "undo": undo_, "nodes": list(nodes)}).encode()
    timeout_s = START_TIMEOUT_S + UNDO_TIMEOUT_S
    answer = children.ask(guard.command(program, os.getpid()), timeout_s, given)
    if answer.is_late:
        return _late()
    try:
        why = json.loads(answer.output)
    except ValueError:
        return f"its undo ended Python (exit status {answer.status})"
    return None if why is None else str(why)


def _late() -> str:
    return f"not within {UNDO_TIMEOUT_S:g} s"


def _undo_here(name: str, undo_: Json, nodes: Sequence[str]) -> str | None:
    async def main() -> str | None:
        fault: Fault = discovery.get("faults", name)
        with trio.move_on_after(UNDO_TIMEOUT_S) as scope:
            await fault.undo(undo_, EndedWorld(nodes))
        return _late() if scope.cancelled_caught else None

    try:
        with as_plugin_error():
            return trio.run(main)
    except PlugInError as error:
        return one_line(error)


def main(arguments: Sequence[str]) -> int:
    """Undo the fault that standard input names."""
    with children.begin(arguments[0]) as out:  # a plug-in may print
        given = json.load(sys.stdin)
        json.dump(_undo_here(given["fault"], given["undo"], given["nodes"]), out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
