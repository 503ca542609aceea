"""The archive of classes that Spark's JVM starts with, in half the time.

Most of what a local Spark does in a short check is loading and verifying some 12,000 classes. Java
can write what one run loaded into a file that later runs map into memory (*dynamic application
class-data sharing*). The file belongs to one Java and one PySpark, lies in the environment, and
takes 150 MB; `checkers.spark.quick_start` creates it.

Source: JEP 350, and the options -XX:ArchiveClassesAtExit and -XX:SharedArchiveFile of Java 13 on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shaketable.checkers.engine.java import SHIM_FOLDER, Java
from shaketable.harness.contracts.errors import UsageError

NO_CONF: Final = "no-spark-conf"
"""A folder that does not exist. Spark puts its configuration's folder on the class path, which
must be the same in every run, and must not be a folder with files in it."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one PySpark: `path`, which may not exist yet."""

    path: Path

    @property
    def is_there(self) -> bool:
        """Return whether there is an archive to start with."""
        return self.path.is_file() and self.path.stat().st_size > 0

    @property
    def is_missing(self) -> bool:
        """Return whether none was made, and none was tried: a Java that cannot leaves it empty."""
        return not self.path.exists() and os.access(self.path.parent.parent, os.W_OK)

    @property
    def conf_folder(self) -> Path:
        """Return what Spark is given as its folder of configuration."""
        return self.path.parent / NO_CONF

    def options(self, keep_classes: Path | None) -> list[str]:
        """Return the options for a JVM that starts with the archive, or writes one as it ends.

        Java starts without an archive that does not fit, as it does without any.
        """
        if keep_classes is not None:
            return [f"-XX:ArchiveClassesAtExit={keep_classes}"]
        return [f"-XX:SharedArchiveFile={self.path}"] if self.is_there else []


def archive_of(java: Java, spark_home: Path) -> ClassArchive:
    """Return the archive of a Java and the PySpark in a folder."""
    digest = hashlib.sha256(f"{java.home}\0{java.version}\0{spark_home}".encode())
    for jar in sorted((spark_home / "jars").glob("*.jar")):
        state = jar.stat()
        digest.update(f"\0{jar.name} {state.st_size} {state.st_mtime_ns}".encode())
    folder = Path(sys.prefix) / SHIM_FOLDER
    return ClassArchive(folder / f"spark-{digest.hexdigest()[:16]}.jsa")


def spark_home() -> Path:
    """Return the folder of PySpark without links, since archives compare class paths as text.

    Raises:
        UsageError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError("PySpark is not installed: pip install shaketable")
    return Path(spec.origin).resolve().parent
