"""Spark starts with an archive of its classes, and no worse without one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shaketable.checkers.engine.java import find_java
from shaketable.checkers.spark import quick_start
from shaketable.checkers.spark.jvm import ClassArchive, archive_of, spark_home
from shaketable.harness.contracts.errors import HarnessError


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(tmp_path / "shaketable-java" / "spark-1.jsa")


@pytest.fixture
def exercised(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let no JVM run; return where one would have kept its classes."""
    kept: list[Path] = []

    def exercise(classes: Path) -> None:
        kept.append(classes)
        classes.write_bytes(b"classes")

    monkeypatch.setattr(quick_start, "_exercise", exercise)
    return kept


def test_an_archive_is_created_once(archive, exercised):
    assert archive.is_missing
    assert quick_start.create(archive)
    assert quick_start.create(archive)
    assert len(exercised) == 1
    assert archive.path.read_bytes() == b"classes"
    assert archive.options(None) == [f"-XX:SharedArchiveFile={archive.path}"]


def test_the_archive_of_another_spark_is_deleted(archive, exercised):
    quick_start.create(archive)
    upgraded = ClassArchive(archive.path.with_name("spark-2.jsa"))
    assert quick_start.create(upgraded)
    assert [path.name for path in archive.path.parent.glob("*.jsa")] == ["spark-2.jsa"]


def test_a_java_that_keeps_no_classes_is_not_asked_again(archive, monkeypatch):
    monkeypatch.setattr(quick_start, "_exercise", lambda _classes: None)
    assert not quick_start.create(archive)
    assert not archive.is_missing
    assert archive.options(None) == []


def test_what_goes_wrong_leaves_no_archive(archive, monkeypatch, caplog):
    def exercise(classes: Path) -> None:
        classes.write_bytes(b"a part")
        raise HarnessError("no room")

    monkeypatch.setattr(quick_start, "_exercise", exercise)
    assert not quick_start.create(archive)
    assert "no room" in caplog.text
    assert [path.name for path in archive.path.parent.iterdir()] == ["spark.lock"]


def test_one_process_creates_it(archive, exercised):
    archive.path.parent.mkdir()
    with (archive.path.parent / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not quick_start.create(archive)
    assert exercised == []


def test_a_ci_job_creates_none(monkeypatch, archive):
    monkeypatch.setattr(quick_start, "archive_of", lambda _java, _home: archive)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    assert quick_start.missing_archive(environment) == archive
    assert quick_start.missing_archive(environment | {"CI": "true"}) is None


def test_an_environment_that_cannot_be_written_has_none(monkeypatch, archive):
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    assert not archive.is_missing


STARTED = """
import os
import sys
from pathlib import Path

from shaketable.checkers.spark import session
from shaketable.checkers.spark.jvm import ClassArchive

archive = ClassArchive(Path(sys.argv[1]))
session.archive_of = lambda _java, _home: archive
opened = session.Session("local[1]")
opened.open()
mapped = str(archive.path.resolve()) in Path(f"/proc/{opened._jvm.process.pid}/maps").read_text()
print(mapped, opened.frames.range(3).count())
opened.close()
"""


def started_with(archive: ClassArchive) -> str:
    """Start Spark with an archive; return whether it is mapped, and the count of three rows.

    In a process of its own: a process has one Spark, and the tests' one may run in this one.
    """
    command = [sys.executable, "-c", STARTED, str(archive.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.spark
def test_spark_starts_with_the_archive():
    archive = archive_of(find_java(os.environ), spark_home())
    assert quick_start.create(archive)
    assert started_with(archive) == "True 3"


@pytest.mark.spark
def test_a_damaged_archive_only_costs_time(archive):
    archive.path.parent.mkdir()
    archive.path.write_bytes(bytes(range(256)) * 64)
    assert started_with(archive).endswith(" 3")
