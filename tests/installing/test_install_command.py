"""`install` lists what there is, refuses what there is not, and `run` names it where it lacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shaketable.harness import discovery
from shaketable.harness.cli import run
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.discovery import target_with
from shaketable.harness.installing import CACHE_VARIABLE, chosen, folder_of, pinned
from shaketable.harness.targets.on_demand import PLUGINS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def test_what_is_pinned_is_a_target_and_the_reverse() -> None:
    assert {target.name for target in PLUGINS} == set(pinned())
    for target in PLUGINS:
        assert discovery.get("targets", target.name) is target
        assert target.version == next(iter(pinned()[target.name]))
        assert target.client_type.functions.names  # its client can be imported


@pytest.mark.parametrize(
    ("target", "option", "kept"),
    [
        ("nats", "sync_interval=2m", False),
        ("nats", "sync_interval=always", True),
        ("rabbitmq", "confirms=on", True),
        ("rabbitmq", "confirms=off", False),
        ("rocketmq", "flush=async", False),
        ("rocketmq", "flush=sync", True),
        ("kafka", "flush_messages=never", False),
        ("kafka", "flush_messages=1", True),
    ],
)
def test_what_survives_a_loss_of_power(target: str, option: str, kept: bool) -> None:
    """Options take from the promises alone: what one of them keeps has to be promised first."""
    promises = target_with(target, (option,)).promises
    assert ("power" in promises.durable_under) is kept


@pytest.mark.parametrize(
    ("options", "kept", "linearizable"),
    [
        ((), {"kill", "pause", "partition"}, {"append"}),
        (("flush_messages=1",), {"kill", "pause", "partition", "power"}, {"append"}),
        (("flush_messages=1", "min_insync_replicas=1"), {"pause", "partition"}, {"append"}),
        (("acks=1",), set(), set()),
        (("unclean_leader_election=true",), set(), set()),
        (("idempotence=on",), {"kill", "pause", "partition"}, {"append"}),
    ],
)
def test_what_settings_of_kafka_take_from_its_promises(
    options: tuple[str, ...], kept: set[str], linearizable: set[str]
) -> None:
    promises = target_with("kafka", options).promises
    assert promises.durable_under & {"kill", "pause", "partition", "power"} == kept
    assert promises.linearizable == linearizable


def test_the_page_has_each_target_its_options_and_versions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
    for target in PLUGINS:
        section = page.split(f"\n## {target.name}\n")[1].split("\n## ")[0]
        assert f"./shaketable run --target {target.name} " in section
        words = set(re.findall(r"`([^`]+)`", section))
        assert words >= {*target.options, *pinned()[target.name]}
    for name, text in re.findall(r"run --target (\S+).*--option (\S+)", page):
        target_with(name, (text,))  # raises if it has no such option
    assert {chosen(what, pinned())[0] for what in re.findall(r"install (\w+)$", page, re.MULTILINE)}


def test_the_list_says_what_is_installed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(cache, "pysyncobj", "0.3.16").mkdir(parents=True)
    assert run(["install"]) == ExitCode.VALID
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "0.3.1" in line][:2] == [
        ["0.3.17"],
        ["0.3.16", "installed"],
    ]
    assert f"Cache: {cache}" in lines


def test_what_is_installed_is_left_alone(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = folder_of(cache, "pysyncobj", "0.3.17")
    there.mkdir(parents=True)
    assert run(["install", "pysyncobj"]) == ExitCode.VALID
    assert capsys.readouterr().out.splitlines() == [f"pysyncobj 0.3.17 is installed: {there}"]
    assert not list(there.iterdir())


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("pysyncob", "unknown target to install 'pysyncob'; did you mean 'pysyncobj'?"),
        ("pysyncobj@0.3.71", "unknown version of pysyncobj '0.3.71'; did you mean '0.3.17'?"),
        ("pysyncobj@", "unknown version of pysyncobj ''"),
    ],
)
def test_what_is_not_pinned_is_bad_usage(
    what: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["install", what]) == ExitCode.USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said


def test_a_version_is_the_first_unless_it_is_named() -> None:
    versions = list(pinned()["pysyncobj"])
    assert chosen("pysyncobj", pinned()) == ("pysyncobj", versions[0])
    assert chosen(f"pysyncobj@{versions[1]}", pinned()) == ("pysyncobj", versions[1])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "pysyncobj 0.3.17 is not installed: ./shaketable install pysyncobj"),
        (
            ["--option", "version=0.3.16"],
            "pysyncobj 0.3.16 is not installed: ./shaketable install pysyncobj@0.3.16",
        ),
    ],
)
def test_a_run_says_what_to_install(
    options: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", "--target", "pysyncobj", *options]) == ExitCode.HARNESS
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(line)
    assert not list(tmp_path.iterdir())
