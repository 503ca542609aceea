"""Installs systems that are not ours on demand, from PyPI, Debian, Go or Maven (ADR 51).

One file pins them all, pins.toml beside this one: for each target its versions, where they come
from, and their checksums. Each kind of package says which tools it `needs` to be installed, and
which it `runs_with`.

They are put into a cache of our own, as CACHE/TARGET/VERSION, each of them whole: what is installed
is written into a folder beside it, which is renamed when it is complete.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Annotated, Final

import msgspec

from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.untrusted_text import printable

PINS: Final = Path(__file__).parent / "pins.toml"
SHA256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A checksum in hexadecimal digits."""


class PypiPackage(msgspec.Struct, frozen=True, tag_field="from", tag="pypi", kw_only=True):
    """A package of the Python Package Index.

    Attributes:
        package: its name.
        sha256: the checksums of its files, any of which may be installed.
        build: requirement of what builds it, with its hash, if it is published as source alone.
    """

    package: str
    sha256: tuple[SHA256, ...]
    build: str = ""

    needs = ("pip",)
    runs_with = ()


class DebianFile(msgspec.Struct, frozen=True, kw_only=True):
    """A package of Debian as it is downloaded.

    Attributes:
        package: its name.
        revision: its version, as apt has it.
        sha256: the checksum of its file for each architecture (dpkg's names, also "all").
    """

    package: str
    revision: str
    sha256: Mapping[str, SHA256]

    @property
    def wanted(self) -> str:
        """Its name and version, as apt takes them."""
        return f"{self.package}={self.revision}"

    def checksum(self, architecture: str) -> str | None:
        """Return the checksum for an architecture; None if none is known."""
        return self.sha256.get(architecture) or self.sha256.get("all")


class DebianPackage(DebianFile, frozen=True, tag_field="from", tag="debian", kw_only=True):
    """A package of Debian, which is unpacked and not installed.

    Attributes:
        depends: those that it depends on and that a system may lack; unpacked beside it.
        library: requirement of what clients import, with its hash, if they need one.
    """

    depends: tuple[DebianFile, ...] = ()
    library: str = ""

    needs = ("apt-get", "dpkg-deb", "dpkg")
    runs_with = ()


class GoModule(msgspec.Struct, frozen=True, tag_field="from", tag="go", kw_only=True):
    """A program of a Go module, which is built here; Go verifies all that it is built of.

    Attributes:
        module: the path of the module, whose root is the program.
        sum: its checksum as go.sum has it; those of what it depends on are in Go's database.
        main: the package in it whose Main takes the arguments: then the program is one that calls
            it, as Go does not build a program of a module that replaces others.
        program: where the program is put, if not at usr/sbin by the module's name.
        library: as of a package of Debian.
    """

    module: str
    sum: Annotated[str, msgspec.Meta(pattern="^h1:.{44}$")]
    main: str = ""
    program: str = ""
    library: str = ""

    needs = ("go",)
    runs_with = ()


class MavenArtifact(msgspec.Struct, frozen=True, tag_field="from", tag="maven", kw_only=True):
    """A program of Maven Central: the jar of an artifact, and those that it depends on.

    Attributes:
        artifact: its group and its name, as group:name.
        further: artifacts beside it, as group:name:version: it may need one that writes its log.
        sha256: the checksum of the checksums of all jars, as `sha256sum *.jar | sha256sum` has it.
        library: as of a package of Debian.
    """

    artifact: Annotated[str, msgspec.Meta(pattern="^[^:]+:[^:]+$")]
    sha256: SHA256
    further: tuple[Annotated[str, msgspec.Meta(pattern="^[^:]+:[^:]+:[^:]+$")], ...] = ()
    library: str = ""

    needs = ("mvn", "java")
    runs_with = ("java",)


Package = PypiPackage | DebianPackage | GoModule | MavenArtifact
Pins = Mapping[str, Mapping[str, Package]]
"""Target -> version -> what is installed."""


def read_pins(file: Path = PINS) -> Pins:
    """Return what a file pins.

    Raises:
        OSError, ValueError: it cannot be read, or is broken: it is a part of this program.
    """
    given = tomllib.loads(file.read_text(encoding="utf-8"))
    return msgspec.convert(given, dict[str, dict[str, Package]])


@functools.cache
def pinned() -> Pins:
    """Return what can be installed."""
    return read_pins()


def chosen(wanted: str, pins: Pins) -> tuple[str, str]:
    """Return the target and the version that TARGET or TARGET@VERSION means.

    Raises:
        UsageError: there is no such target, or it has no such version.
    """
    target, at, version = wanted.partition("@")
    if target not in pins:
        raise UsageError(unknown_name("target to install", target, pins))
    versions = pins[target]
    if not at:
        return target, next(iter(versions))
    if version not in versions:
        raise UsageError(unknown_name(f"version of {target}", version, versions))
    return target, version


# The cache.

CACHE_VARIABLE: Final = "SHAKETABLE_CACHE"
"""Environment variable with the folder, for all commands."""
PARTIAL: Final = ".partial-"
"""Prefix of the folder in the cache in which something is being installed; one at a time."""
LOCK: Final = ".lock"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder: `SHAKETABLE_CACHE`, or ours in the user's cache (XDG)."""
    if given := environ.get(CACHE_VARIABLE):
        return Path(given).absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME") or "~").expanduser()
    return home / "shaketable" if base.startswith("/") else home / ".cache" / "shaketable"


def folder_of(cache: Path, target: str, version: str) -> Path:
    """Return where a version of a target is, or would be."""
    return cache / target / version


def is_installed(cache: Path, target: str, version: str) -> bool:
    """Return whether it is installed: its folder appears only when it is complete."""
    return folder_of(cache, target, version).is_dir()


@contextmanager
def partial_folder(cache: Path, tell: Callable[[str], None]) -> Iterator[Path]:
    """Give an empty folder to install into; what is left of it at the end is deleted.

    One process at a time installs, others say so and wait; so what an earlier one has left is of
    one that was killed, and is deleted too.

    Raises:
        HarnessError: the cache cannot be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell("waiting for another installation into this cache")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in cache.glob(f"{PARTIAL}*"):
                shutil.rmtree(left, ignore_errors=True)
            # A name of its own: a tool that outlived a killed process cannot write into it.
            partial = Path(mkdtemp(prefix=PARTIAL, dir=cache))
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise HarnessError(
            f"cannot install into {cache}: {error.strerror or error}; name another folder with"
            f" --cache, or with {CACHE_VARIABLE}"
        ) from error


def keep(folder: Path, cache: Path, target: str, version: str) -> Path:
    """Rename what was installed to where it is looked for; return that."""
    kept = folder_of(cache, target, version)
    kept.parent.mkdir(exist_ok=True)
    folder.rename(kept)
    return kept


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
