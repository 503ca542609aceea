"""What can be installed: for each target its versions, where they come from, their checksums. Pure.

Each kind of package says which tools it `needs` to be installed, and which it `runs_with`.
One file pins all of them: pins.toml, beside this one.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from shaketable.harness.contracts.errors import UsageError, unknown_name

FILE: Final = Path(__file__).parent / "pins.toml"
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


def read(file: Path = FILE) -> Pins:
    """Return what a file pins.

    Raises:
        OSError, ValueError: it cannot be read, or is broken: it is a part of this program.
    """
    given = tomllib.loads(file.read_text(encoding="utf-8"))
    return msgspec.convert(given, dict[str, dict[str, Package]])


@functools.cache
def pinned() -> Pins:
    """Return what can be installed."""
    return read()


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
