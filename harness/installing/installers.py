"""Installs a pinned version of a target into the cache: from PyPI, Debian, Go or Maven."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.installing.cache import folder_of, is_installed, keep, partial_folder
from shaketable.harness.installing.commands import require, run
from shaketable.harness.installing.pins import (
    DebianPackage,
    GoModule,
    MavenArtifact,
    Package,
    PypiPackage,
)

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
