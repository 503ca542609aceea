"""Apache's mqadmin, kept running: a Java of its own for each call costs seconds."""

from __future__ import annotations

import re
import time

from tests.support.foreign_java import Java, programs

CALL_SECONDS_MAX = 60
POLL_S = 0.02


class Admin:
    """One mqadmin of a version, at some name servers."""

    def __init__(self, java: Java, version: str, name_servers: str) -> None:
        quiet = java.folder / "conf" / "logback_tools.xml"  # without it, 4.9 does not start
        quiet.parent.mkdir(exist_ok=True)
        quiet.write_text("<configuration/>")
        self.name_servers = name_servers
        self.program = java.start(programs(version), "shaketable.Admin", is_fed=True)

    def call(self, command: str, *words: str, is_checked: bool = True) -> str:
        """Run a command; return what it prints. An error that it tells of fails the test.

        Not `is_checked`: it asks for more than we answer, and goes on.
        """
        lines, begin = self.program.lines, len(self.program.lines)
        self.program.feed("\t".join((command, "-n", self.name_servers, *words)))
        end = time.monotonic() + CALL_SECONDS_MAX
        while "called" not in lines[begin:]:
            assert time.monotonic() < end, f"mqadmin {command} does not end: {lines[begin:]}"
            assert self.program.process.poll() is None, f"mqadmin ended: {lines[begin:]}"
            time.sleep(POLL_S)
        text = "\n".join(lines[begin : lines.index("called", begin)])
        assert not is_checked or not re.search(r"Exception: |^\s+at ", text, re.MULTILINE), text
        return text
