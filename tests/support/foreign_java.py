"""Programs of Apache RocketMQ, from Maven Central, unchanged: its Java clients and its servers.

`programs(version)` and `servers()` fetch and compile once and keep the result in the user's cache;
`Java` runs what is in them and ends it. Without Maven and a JDK the tests skip.

`tests.support.foreign_programs` has all of it fetched before the tests start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

SOURCES = Path(__file__).parents[1] / "foreign"
FETCH_SECONDS_MAX = 600
END_SECONDS_MAX = 10
OLD, NEW = "4.9.8", "5.3.3"
"""The client versions that the tests use."""
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""What RocketMQ's mapped files want of a Java above 8."""

HAS_MAVEN = all(shutil.which(tool) for tool in ("mvn", "javac", "java"))
needs_maven = pytest.mark.skipif(
    not HAS_MAVEN,
    reason="no mvn, javac and java on PATH (Debian: maven, default-jdk-headless)",
)


def programs(version: str) -> Path:
    """Return a folder with Apache's client of that version in lib/, our programs in classes/."""
    return _kept("java", version)


def servers() -> Path:
    """Return a folder with Apache's name server, broker and store in lib/."""
    return _kept("server", NEW)


def _kept(name: str, version: str) -> Path:
    source = SOURCES / name
    files = sorted(path for path in source.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shaketable"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"rocketmq-{name}-{version}-{digest}"
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two that want it one fetches
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as temp:
                made = Path(temp) / "made"
                _make(source, version, made)
                made.rename(folder)
    return folder


def _make(source: Path, version: str, folder: Path) -> None:
    """Fetch the jars; compile the programs, where there are any."""
    _run(
        "mvn", "-q", "-B", "-f", str(source / "pom.xml"), f"-Drocketmq.version={version}",
        "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}",
    )  # fmt: skip
    programs = sorted(map(str, source.rglob("*.java")))
    (folder / "classes").mkdir()
    if programs:
        jars = f"{folder / 'lib'}/*"
        _run(
            "javac", "-nowarn", "-proc:none", "-cp", jars, "-d", str(folder / "classes"), *programs
        )


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout[-2000:]}"


class Program:
    """A running Java program; what it prints is kept line by line."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        self.lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def told(self, word: str) -> list[list[str]]:
        """Return the words of the lines that begin with `word`, that one left out."""
        return [line.split()[1:] for line in list(self.lines) if line.split(" ", 1)[0] == word]

    def feed(self, line: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None, "it was started without is_fed"
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def end(self) -> None:
        """End it, whatever it is doing."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(END_SECONDS_MAX)
        self._reader.join(END_SECONDS_MAX)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Java:
    """Starts Java programs in a folder of their own, and ends all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Program] = []

    def start(
        self, made: Path, main: str, *arguments: str, heap_mb: int = 192, is_fed: bool = False
    ) -> Program:
        """Start the class `main` of what `programs` or `servers` made; `feed` it if it reads."""
        process = subprocess.Popen(
            [
                "java", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                *OPENED, f"-Duser.home={self.folder}",
                "-cp", f"{made / 'classes'}:{made / 'lib'}/*", main, *arguments,
            ],
            stdin=subprocess.PIPE if is_fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, "ROCKETMQ_HOME": str(self.folder)},
        )  # fmt: skip
        program = Program(process, main.rpartition(".")[2])
        self.started.append(program)
        return program

    def start_python(self, script: Path, *arguments: object) -> Program:
        """Start a script in a Python of its own: one that loads a library of Apache's."""
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder)},
        )
        program = Program(process, str(arguments[0]))
        self.started.append(program)
        return program


@contextmanager
def java_in(folder: Path) -> Iterator[Java]:
    """Yield a `Java` whose programs are all ended behind it; nobody waits for a clean end."""
    java = Java(folder)
    try:
        yield java
    finally:
        for program in java.started:
            program.process.kill()
        for program in java.started:
            program.end()


def main() -> None:
    """Fetch and compile all that the tests use; print how long it took."""
    if not HAS_MAVEN:
        sys.stdout.write("no mvn, javac and java on PATH: tests with Apache's programs will skip\n")
        return
    began = time.monotonic()
    for version in (OLD, NEW):
        programs(version)
    servers()
    sys.stdout.write(f"Apache's programs are in the cache ({time.monotonic() - began:.0f} s)\n")
