"""Installs a pinned version of a target into the cache: from PyPI, Debian, Go or Maven."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.installing.cache import folder_of, is_installed, keep, partial_folder
from shaketable.harness.installing.pins import (
    DebianPackage,
    GoModule,
    MavenArtifact,
    Package,
    PypiPackage,
)
from shaketable.harness.untrusted_text import printable

# Runs the tools that install (pip, apt, dpkg, Go, Maven), with a limit and their output kept.

TIMEOUT_S: Final = 900.0
"""Longest time of one command: Go builds a server in a minute or two."""
OUTPUT_BYTES_MAX: Final = 1 << 20
ERROR_CHARS_MAX: Final = 300
NO_ENV: Final[Mapping[str, str]] = {}
HOW_TO_GET: Final[Mapping[str, str]] = {
    "apt-get": "it is a tool of Debian and its derivatives; this target cannot be installed here",
    "dpkg": "it is a tool of Debian and its derivatives; this target cannot be installed here",
    "dpkg-deb": "it is a tool of Debian and its derivatives; this target cannot be installed here",
    "go": "install Go 1.24 or newer (Debian: apt install golang-go; or go.dev/dl)",
    "mvn": "install Maven (Debian: apt install maven; or maven.apache.org)",
    "java": "install Java (Debian: apt install default-jre-headless), or set JAVA_HOME",
}
"""What to do if a tool is missing."""


def require(tools: Sequence[str], target: str) -> None:
    """Check that these commands are there.

    Raises:
        HarnessError: one is missing; the line says what to do.
    """
    for tool in tools:
        if tool == "pip":
            if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True,
                              check=False).returncode:  # fmt: skip
                raise HarnessError(
                    f"{target} needs pip in this Python, and {sys.executable} has none;"
                    " add it: python -m ensurepip"
                )
        elif (why := why_missing(tool, target)) is not None:
            raise HarnessError(why)


def why_missing(tool: str, target: str) -> str | None:
    """Return a line that says that a command is missing, and what to do; None if it is there."""
    home = os.environ.get("JAVA_HOME") if tool == "java" else None
    if shutil.which(tool, path=f"{home}/bin" if home else None) is not None:
        return None
    where = f" in {home}/bin (JAVA_HOME)" if home else ""
    return f"{target} needs {tool}, and there is none{where}: {HOW_TO_GET[tool]}"


def run(argv: Sequence[str], folder: Path, env: Mapping[str, str] = NO_ENV) -> str:
    """Run a command in a folder and return what it printed.

    It is in a session of its own, so that all of it ends if this process is interrupted.

    Raises:
        HarnessError: it failed, or took too long; the line has the last of its errors.
    """
    with TemporaryFile() as output, TemporaryFile() as errors:
        code = _waited_for(argv, folder, {**os.environ, **env}, output, errors)
        output.seek(0)
        errors.seek(0)
        printed = output.read(OUTPUT_BYTES_MAX).decode(errors="replace")
        said = errors.read(OUTPUT_BYTES_MAX).decode(errors="replace")
    if code:
        raise HarnessError(f"{_name(argv)} failed: {_reason(said) or _reason(printed) or code}")
    return printed


def _waited_for(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
) -> int:
    """Run a command to its end, and return its exit code; it does not outlive this call."""
    # Ctrl-C has to wait until there is a process to be ended: it might be started already.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{_name(argv)}: no end within {TIMEOUT_S:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _name(argv: Sequence[str]) -> str:
    """Return what a command is called in a message: its program and what it does."""
    words = ["pip", *argv[3:]] if list(argv[1:3]) == ["-m", "pip"] else list(argv)
    return " ".join(words[:2])


def _reason(text: str) -> str:
    """Return the line that says why: the last that is marked as an error, or the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith(("error", "e:"))]
    last = (marked or lines or [""])[-1]
    return printable(last[:ERROR_CHARS_MAX])


# From PyPI, Debian, Go or Maven, into the cache.

Tell = Callable[[str], None]
"""Is called with a line before each step."""
PIP: Final = (sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--no-input",
              "--disable-pip-version-check", "--no-compile", "--quiet")  # fmt: skip
INSTALLED: Final = "installed"
"""The folder that is kept, in the partial one."""
PROGRAMS: Final = "usr/sbin"
"""Where in it a built program is: where Debian has servers."""
LIBRARY: Final = "library"
"""Where in it is what clients import."""
JARS: Final = "jars"
"""Where in it is a program for Java."""
COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
PROJECT: Final = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>shaketable</groupId><artifactId>installed</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
"""What Maven is to fetch: a project that depends on it."""
DEPENDENCY: Final = """<dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency>"""


def install(cache: Path, target: str, version: str, package: Package, tell: Tell) -> Path:
    """Install it, unless it is there; return its folder.

    Raises:
        HarnessError: a tool is missing, a checksum is wrong, or something failed; then nothing of
            it is in the cache.
    """
    if is_installed(cache, target, version):
        return folder_of(cache, target, version)
    require(package.needs, target)
    with partial_folder(cache, tell) as partial:
        if is_installed(cache, target, version):  # by another process, meanwhile
            return folder_of(cache, target, version)
        into = partial / INSTALLED
        into.mkdir()
        _install(package, version, partial, into, tell)
        if not isinstance(package, PypiPackage) and package.library:
            tell(f"pip: installing what clients import ({package.library.split()[0]})")
            _pip(package.library, partial, into / LIBRARY)
        return keep(into, cache, target, version)


@functools.singledispatch
def _install(package: Package, version: str, work: Path, into: Path, tell: Tell) -> None:
    """Install a package into an empty folder; `work` is for what does not stay."""
    raise NotImplementedError(type(package).__name__)


@_install.register
def _(package: PypiPackage, version: str, work: Path, into: Path, tell: Tell) -> None:
    """Let pip install it. pip refuses a file without one of the checksums."""
    env: dict[str, str] = {}
    tools: tuple[str, ...] = ()
    if package.build:
        tell(f"pip: installing what builds it ({package.build.split()[0]})")
        _pip(package.build, work, work / "build")
        # Without isolation: pip would fetch what builds the package without a checksum.
        env, tools = {"PYTHONPATH": str(work / "build")}, ("--no-build-isolation",)
    tell(f"pip: installing {package.package} {version}")
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in package.sha256)
    _pip(f"{package.package}=={version} {hashes}", work, into, *tools, env=env)


def _pip(requirement: str, work: Path, into: Path, *options: str, env: dict[str, str] = {}) -> None:  # noqa: B006 - not changed
    (work / "requirements.txt").write_text(f"{requirement}\n", encoding="utf-8")
    run([*PIP, *options, "--target", str(into), "-r", "requirements.txt"], work, env)


@_install.register
def _(package: DebianPackage, version: str, work: Path, into: Path, tell: Tell) -> None:
    """Download it and what it depends on by apt, compare the checksums, and unpack all."""
    architecture = run(["dpkg", "--print-architecture"], work).strip()
    packages = (package, *package.depends)
    for each in packages:
        if each.checksum(architecture) is None:
            there_are = ", ".join(sorted(each.sha256))
            raise HarnessError(
                f"{each.wanted}: no checksum is known for {architecture} (for: {there_are})"
            )
    more = f" and {len(package.depends)} that it depends on" if package.depends else ""
    tell(f"apt: downloading {package.wanted}{more}")
    _download([each.wanted for each in packages], work, tell)
    for each in packages:
        (file,) = work.glob(f"{each.package}_*.deb")
        found, expected = hashlib.sha256(file.read_bytes()).hexdigest(), each.checksum(architecture)
        if found != expected:
            raise HarnessError(
                f"{file.name} is not what was pinned: its SHA-256 is {found}, expected {expected};"
                " nothing was installed"
            )
        tell(f"dpkg-deb: unpacking {file.name}")
        run(["dpkg-deb", "-x", str(file), str(into)], work)


def _download(wanted: Sequence[str], work: Path, tell: Tell) -> None:
    """Download packages; if apt does not know one, with lists of our own, which need no root."""
    try:
        run(["apt-get", "download", *wanted], work)
    except HarnessError:
        tell("apt: updating lists of packages in a folder of our own")
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (work / folder).mkdir(parents=True)
        ours = (
            "-o", f"Dir::State={work / 'state'}", "-o", f"Dir::Cache={work / 'cache'}",
            "-o", "APT::Sandbox::User=", "-q",
        )  # fmt: skip
        run(["apt-get", *ours, "update"], work)
        run(["apt-get", *ours, "download", *wanted], work)


@_install.register
def _(package: GoModule, version: str, work: Path, into: Path, tell: Tell) -> None:
    """Let Go download, verify and build it."""
    wanted = f"{package.module}@v{version}"
    tell(f"go: downloading {shlex.quote(wanted)}")
    said = json.loads(run(["go", "mod", "download", "-json", wanted], work))
    if said.get("Sum") != package.sum:
        raise HarnessError(
            f"{wanted} is not what was pinned: its checksum is {said.get('Sum')}, expected"
            f" {package.sum}; nothing was installed"
        )
    tell(f"go: building {wanted}")
    if package.main:
        _build_main(package, wanted, work, into)
    else:
        run(["go", "install", wanted], work, {"GOBIN": str(into / PROGRAMS)})


def _build_main(package: GoModule, wanted: str, work: Path, into: Path) -> None:
    """Build a program of our own that does nothing but call the package's Main."""
    source = work / "main"
    source.mkdir()
    (source / "main.go").write_text(
        f'package main\n\nimport (\n\t"os"\n\n\tprogram "{package.module}/{package.main}"\n)\n\n'
        "func main() { program.Main(os.Args) }\n",
        encoding="utf-8",
    )
    run(["go", "mod", "init", "shaketable/program"], source)
    run(["go", "get", wanted], source)
    run(["go", "mod", "tidy"], source)
    (into / package.program).parent.mkdir(parents=True)
    run(["go", "build", "-o", str(into / package.program), "."], source)


@_install.register
def _(package: MavenArtifact, version: str, work: Path, into: Path, tell: Tell) -> None:
    """Let Maven fetch the artifact and what it depends on, and compare all of their checksums."""
    artifacts = (f"{package.artifact}:{version}", *package.further)
    dependencies = "".join(DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
    project = PROJECT.format(dependencies=dependencies)
    (work / "pom.xml").write_text(project, encoding="utf-8")
    jars = into / JARS
    tell(f"mvn: downloading {package.artifact}:{version} and what it depends on")
    run(["mvn", "-B", "-q", "--strict-checksums", COPY, f"-DoutputDirectory={jars}"], work)
    found = _checksum_of(jars)
    if found != package.sha256:
        raise HarnessError(
            f"{package.artifact}:{version} and what it depends on are not what was pinned: the"
            f" SHA-256 of their checksums is {found}, expected {package.sha256}; nothing was"
            " installed"
        )


def _checksum_of(jars: Path) -> str:
    """Return the checksum of the files' checksums and names (`MavenArtifact.sha256`)."""
    files = sorted(jars.glob("*.jar"))
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
