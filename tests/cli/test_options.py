"""Options say what a campaign file can say, win over it, and can be typed again."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import msgspec
import pytest

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import (
    BUILT_IN,
    FILE_ONLY,
    OPTIONS_TYPED_MAX,
    Campaign,
    load,
    loads,
    repeat_command,
    resolve,
)
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.terminal.commands import app
from shaketable.harness.terminal.run import OUTSIDE_CAMPAIGN, RunOptions


def parsed(line: str) -> tuple[Path | None, RunOptions]:
    command, bound, _ = app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    assert command.__name__ == "run"
    return bound.arguments.get("campaign"), bound.arguments.get("options", RunOptions())


def campaign(line: str) -> Campaign:
    return msgspec.convert(parsed(line)[1].given(), Campaign)


def test_every_key_of_a_campaign_file_is_an_option() -> None:
    keys = set(msgspec.to_builtins(Campaign()))
    options = {field.name for field in dataclasses.fields(RunOptions)}
    assert options - OUTSIDE_CAMPAIGN == keys - FILE_ONLY


def test_nothing_given_says_nothing() -> None:
    assert parsed("run")[1].given() == {}


def test_the_field_s_own_names() -> None:
    assert campaign("run --nemesis kill,pause -w log") == Campaign(
        faults=("kill", "pause"), workload="log"
    )
    assert campaign("run --faults none").faults == ()
    assert campaign("run --rate 0 --nodes 5 --seed 7") == Campaign(rate_hz=0, nodes=5, seed="7")


def test_all_faults_are_those_that_there_are() -> None:
    assert campaign("run --faults all").faults == tuple(sorted(discovery.find("faults")))


def test_a_script_is_repeated_by_its_file() -> None:
    asked = loads('[[script]]\nfault = "kill"\nat = 3', "x.toml")
    assert repeat_command(asked, Path("a b")) == "./shaketable run 'a b/campaign.toml'"


@pytest.mark.parametrize(
    "asked",
    [
        Campaign(seed="a1"),
        Campaign(seed="a 1", nodes=5, faults=("kill",), time_limit_s=60),
        Campaign(seed="7", faults=(), mutant="ack-before-quorum", rate_hz=12.5),
        Campaign(seed="1", concurrency="3n", data_file_bytes=4096),
        Campaign(seed="1", stop_at_first_violation=True),
        Campaign(seed="1", nemesis_interval_s=2.3456789, rate_hz=1234567.0),
    ],
)
def test_the_repeat_command_draws_the_same_campaign(asked: Campaign) -> None:
    line = repeat_command(asked, Path("store/x"))
    assert line.startswith("./shaketable run ")
    assert campaign(line.removeprefix("./shaketable ")) == asked


@pytest.mark.parametrize("target", ["dledger", "sync-double-write"])
def test_faults_that_nobody_chose_are_not_repeated(target: str) -> None:
    asked = resolve(Campaign(seed="a1", target=target, faults=("default",)))
    line = repeat_command(asked, Path("store/x"))
    assert "--faults" not in line
    given = parsed(line.removeprefix("./shaketable "))[1].given()
    assert resolve(loads("", "none", given)) == asked


def test_where_it_was_kept_and_who_checked_it_are_not_repeated() -> None:
    asked = msgspec.structs.replace(
        load(BUILT_IN), seed="a1", store="/somewhere", spark_master="local[1]"
    )
    assert repeat_command(asked, Path("store/x")) == "./shaketable run --seed a1"


def test_a_campaign_unlike_the_default_is_repeated_by_its_file() -> None:
    defaults = msgspec.to_builtins(Campaign())
    numbers = {
        key: value * 2
        for key, value in defaults.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert len(numbers) > OPTIONS_TYPED_MAX
    asked = msgspec.convert({**defaults, **numbers}, Campaign)
    assert repeat_command(asked, Path("a b")) == "./shaketable run 'a b/campaign.toml'"


def test_a_spark_connect_server_checks_where_one_is_named() -> None:
    assert campaign("run").spark == "local[*]"
    assert campaign("run --spark-master yarn").spark == "yarn"
    assert campaign("run --spark-remote sc://host:15002").spark == "sc://host:15002"
    asked = msgspec.structs.replace(load(BUILT_IN), seed="a1", spark_remote="sc://host:15002")
    assert repeat_command(asked, Path("store/x")) == "./shaketable run --seed a1"
    with pytest.raises(UsageError, match="--spark-remote host: expected sc://HOST:PORT"):
        resolve(Campaign(spark_remote="host"))
