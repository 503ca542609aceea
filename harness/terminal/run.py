"""The commands `run`, `analyze` and `report`: run campaigns, and judge stored runs again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import Group, Parameter

from shaketable.harness import discovery
from shaketable.harness.campaigns import built_in
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import (
    Campaign,
    parse_faults,
    parse_names,
    parse_scenarios,
)
from shaketable.harness.campaigns.durations import to_seconds
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import ExitCode, worst_exit
from shaketable.harness.history import run_folder
from shaketable.harness.judging import judge
from shaketable.harness.judging.engines import Engine
from shaketable.harness.terminal import completion, heal, session
from shaketable.harness.terminal.output import out
from shaketable.harness.without_pandas import leave_pandas_out

TEST_COUNT_MAX: Final = 10_000


def run(
    campaign: Annotated[
        Path | None,
        Parameter(
            name="CAMPAIGN", show_default=False, completer=completion.one_of_or_file("campaigns")
        ),
    ] = None,
    /,
    *,
    options: RunOptions | None = None,
) -> int:
    """Run a campaign: start a group, inject faults, heal it, check what clients saw, report.

    Without a campaign file: the built-in one, a 3-node DLedger group for about a minute.
    Options override the campaign file, which overrides the defaults. Ctrl-C ends the faults early
    and judges what was recorded; a second one stops at once.

    For example:
    ./shaketable run
    ./shaketable run --nodes 5 --faults kill,partition --time-limit 60 --seed 7
    ./shaketable run --mutant ack-before-quorum
    ./shaketable run --workload register --online --time-limit 1h

    Args:
        campaign: A campaign file, whose keys are the options below with underscores; or the name
            of a built-in one (docs/campaigns.md).
        options: What the command line says about the campaign.
    """
    given = options or RunOptions()
    if not 1 <= given.test_count <= TEST_COUNT_MAX:
        raise UsageError(f"--test-count {given.test_count}: expected 1 to {TEST_COUNT_MAX}")
    file = built_in.find(campaign or campaigns.BUILT_IN, built_in.CAMPAIGNS, "campaign")
    wanted = campaigns.load(file, given.given())
    resolved = campaigns.resolve(wanted)
    heal.heal_before_a_run(Path(resolved.store))
    session.enter(resolved)
    leave_pandas_out()
    codes: list[int] = []
    for number in range(given.test_count):
        if number:
            out.print(f"\ncampaign {number + 1} of {given.test_count}")
        ended = session.run_one(_of_number(resolved, wanted, number), given.base_port)
        codes.append(ended.code)
        if ended.code != ExitCode.VALID or ended.is_interrupted:
            break
    return worst_exit(codes)


def _of_number(resolved: Campaign, wanted: Campaign, number: int) -> Campaign:
    """Return the n-th campaign, with a seed of its own: SEED, SEED.1, SEED.2; or a fresh one."""
    if number == 0:
        return resolved
    if wanted.seed is None:
        return campaigns.resolve(wanted)
    return msgspec.structs.replace(resolved, seed=f"{wanted.seed}.{number}")


# `analyze` and `report`: judge or report a stored run again.


def analyze(
    run: Annotated[Path, Parameter(name="RUN")],
    /,
    *,
    engine: Literal["spark", "local"] = "spark",
    promise: Annotated[
        str | None,
        Parameter(metavar="TARGET", show_default=False, completer=completion.one_of("targets")),
    ] = None,
    spark_master: Annotated[str | None, Parameter(metavar="URL", show_default=False)] = None,
    spark_remote: Annotated[str | None, Parameter(metavar="URL", show_default=False)] = None,
) -> int:
    """Judge a stored run again: export its history, check it, write the report.

    Works for a run that was interrupted or whose harness was killed, too.

    For example:
    ./shaketable analyze store/latest
    ./shaketable analyze store/latest --promise dledger

    Args:
        run: Folder of a run.
        promise: Check that target's promises as well; recorded in campaign.toml.
        engine: The Spark pipeline, or the same checks in one process, without Java.
        spark_master: Spark that checks the history; default: the campaign's.
        spark_remote: Spark Connect server that checks it instead: sc://HOST:PORT.
    """
    campaigns.require_remote(spark_remote)
    folder = run_folder.open_existing(run)
    campaign = judge.stored_campaign(folder)
    if promise is not None:
        campaign = msgspec.structs.replace(campaign, promise=promise)
        discovery.get("targets", promise)  # raises if there is none
    leave_pandas_out()
    with session.logged_to(folder):
        spark = spark_remote or spark_master or campaign.spark
        return session.judge_stored(
            folder, campaign, Engine(engine, spark), keeps_promise=promise is not None
        )


def report(run: Annotated[Path, Parameter(name="RUN")], /) -> int:
    """Write a stored run's report again, from its verdicts.

    Example: ./shaketable report store/latest

    Args:
        run: Folder of a run.
    """
    folder = run_folder.open_existing(run)
    leave_pandas_out()
    with session.logged_to(folder):
        for path in judge.render(folder).files:
            out.print(str(path), soft_wrap=True)
    return ExitCode.VALID


# The options of `shaketable run`.
#
# Every key of a campaign file is an option of the same name with dashes. For an option that is
# not given the campaign file applies, and then the default.
#
# Source: jepsen.cli (names of the options); DESIGN.md section 3.

SHAKING: Final = Group("What to test, under which faults", sort_key=1)
CLIENTS: Final = Group("What clients do", sort_key=2)
RUNS: Final = Group("Runs", sort_key=3)
GROUP: Final = Group("Fine tuning", sort_key=4)

_DEFAULTS: Final[dict[str, Any]] = msgspec.to_builtins(Campaign())
OUTSIDE_CAMPAIGN: Final = frozenset({"test_count", "base_port"})
"""Options of the command that are no campaign keys."""


def _default(key: str) -> Callable[[Any], str]:
    """Return a formatter of the campaign's default, as the option's own is "not given"."""
    value = _DEFAULTS[key]
    text = ",".join(value) if isinstance(value, list | tuple) else value
    return lambda _: f"{text:g}" if isinstance(text, float) else str(text)


def _option(
    key: str, group: Group, metavar: str | None, *names: str, default: bool = True
) -> Parameter:
    return Parameter(
        name=names or None,
        group=group,
        metavar=metavar,
        show_default=_default(key) if default else False,
        converter=to_seconds if metavar == "S" else None,
        completer=completion.of_campaign_key(key, campaigns.CHOICES.get(key, ())),
    )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says about a campaign; None where it says nothing.

    Attributes:
        target: System under test (`list targets`).
        option: The target's own options (docs/targets.md), such as journal=off,version=0.3.16.
        nodes: Size of the group, nodes n0, n1, ...; 0: two to seven, chosen by the seed.
        faults: Comma-separated faults (`list faults`); none; all; default: those of the target.
        scenarios: Comma-separated sequences of faults (`list scenarios`) to use as well; none; all
            that consist of these faults.
        victims: Nodes that faults strike: leader, followers, one, minority, majority, all, n1 ...
        nemesis_schedule: How faults follow each other: random, periodic or sequence (as named).
        faults_at_once: How many faults may be active at once, each in a lane of its own.
        budget: What faults may take down together: quorum (leave a quorum running), or none.
        nemesis_interval: Mean quiet time between the end of a fault and the next, in seconds.
        fault_duration_min: Shortest duration of a fault, in seconds.
        fault_duration_max: Longest duration of a fault, in seconds.
        time_limit: How long clients work, in seconds, in addition to setup, heal, drain and check.
        steady: How much of the time limit passes before the first fault, in seconds.
        mutant: Planted bug to run the target with (`list mutants`).
        promise: Another target whose promises are checked as well, such as dledger.
        world: Where the group runs: process (on this machine), netns (each node in its own network
            namespace), sim (simulated), existing (a running group), hosts (other machines, by
            OpenSSH).
        workload: What clients do (`list workloads`); default: the target's own workload.
        queues: Queues that the workload uses.
        key_skew: Skew of the queues' use: 0, all alike; 1, the n-th queue is used 1/n as often.
        clients_per_key: How many clients use each queue; 0: all clients use all queues.
        concurrency: Number of clients: 10, or 3n for three times the nodes.
        workers: Processes that the clients are spread over.
        rate: Operations per second of all clients together; 0: as fast as possible.
        think_time: Mean pause of each client between two operations, in seconds.
        op_timeout: After this many seconds without an answer an operation's outcome is unknown.
        seed: Seed of all random choices; it is printed, so that the run can be repeated.
        test_count: Number of campaigns, each with its own seed; stops at the first that is not
            valid.
        online: Check operations while the campaign runs, and report the first violation at once;
            what can only be checked at the end is listed.
        stop_at_first_violation: End the faults at the first violation found while it runs, or rule
            that a node or client breaks; then heal and check. Implies --online.
        name: Folder under the store.
        store: Where runs are kept.
        engine: spark, or local: the same checks in one process, without Java.
        spark_master: Spark that checks the history: local[*], spark://HOST:PORT, yarn, k8s://URL.
        spark_remote: Spark Connect server that checks it instead: sc://HOST:PORT.
        base_port: First of the loopback ports to use, instead of free ones.
        disk: How nodes write: real, or volatile, where a kill loses what was not synced.
        ack: What an acknowledgement means: fsync, or page-cache.
        leases_ms: Duration of read leases, which trust clocks, in milliseconds; 0: no leases.
        record: What nodes record: none, or inputs (for `replay`).
        limits: A broker's limits on topics and members of a group: usual, or low.
        data_file_size: Size of a log file, in bytes; small, so that a short run fills many.
        index_file_size: Size of a file of the log's index, in bytes.
    """

    target: Annotated[str | None, _option("target", SHAKING, "NAME")] = None
    option: Annotated[str | None, _option("option", SHAKING, "NAME=VALUE", default=False)] = None
    nodes: Annotated[int | None, _option("nodes", SHAKING, "N")] = None
    faults: Annotated[str | None, _option("faults", SHAKING, "NAMES", "--faults", "--nemesis")] = (
        None
    )
    scenarios: Annotated[str | None, _option("scenarios", SHAKING, "NAMES")] = None
    victims: Annotated[str | None, _option("victims", SHAKING, "NAMES", default=False)] = None
    nemesis_schedule: Annotated[str | None, _option("nemesis_schedule", SHAKING, "KIND")] = None
    faults_at_once: Annotated[int | None, _option("faults_at_once", SHAKING, "N")] = None
    budget: Annotated[str | None, _option("budget", SHAKING, "KIND")] = None
    nemesis_interval: Annotated[float | None, _option("nemesis_interval", SHAKING, "S")] = None
    fault_duration_min: Annotated[float | None, _option("fault_duration_min", SHAKING, "S")] = None
    fault_duration_max: Annotated[float | None, _option("fault_duration_max", SHAKING, "S")] = None
    time_limit: Annotated[float | None, _option("time_limit", SHAKING, "S")] = None
    steady: Annotated[float | None, _option("steady", SHAKING, "S")] = None
    mutant: Annotated[str | None, _option("mutant", SHAKING, "NAME", default=False)] = None
    promise: Annotated[str | None, _option("promise", SHAKING, "TARGET", default=False)] = None
    world: Annotated[str | None, _option("world", SHAKING, "NAME")] = None

    workload: Annotated[str | None, _option("workload", CLIENTS, "NAME", "--workload", "-w")] = None
    queues: Annotated[int | None, _option("queues", CLIENTS, "N")] = None
    key_skew: Annotated[float | None, _option("key_skew", CLIENTS, "X")] = None
    clients_per_key: Annotated[int | None, _option("clients_per_key", CLIENTS, "N")] = None
    concurrency: Annotated[str | None, _option("concurrency", CLIENTS, "N")] = None
    workers: Annotated[int | None, _option("workers", CLIENTS, "N")] = None
    rate: Annotated[float | None, _option("rate", CLIENTS, "HZ")] = None
    think_time: Annotated[float | None, _option("think_time", CLIENTS, "S")] = None
    op_timeout: Annotated[float | None, _option("op_timeout", CLIENTS, "S")] = None

    seed: Annotated[str | None, _option("seed", RUNS, "SEED", default=False)] = None
    test_count: Annotated[int, Parameter(group=RUNS, metavar="N", show_default=False)] = 1
    online: Annotated[
        bool | None, Parameter(name="--online", group=RUNS, negative="", show_default=False)
    ] = None
    stop_at_first_violation: Annotated[
        bool | None,
        Parameter(name="--stop-at-first-violation", group=RUNS, negative="", show_default=False),
    ] = None
    name: Annotated[str | None, _option("name", RUNS, "NAME")] = None
    store: Annotated[str | None, _option("store", RUNS, "FOLDER")] = None
    engine: Annotated[str | None, _option("engine", RUNS, "NAME")] = None
    spark_master: Annotated[str | None, _option("spark_master", RUNS, "URL")] = None
    spark_remote: Annotated[str | None, _option("spark_remote", RUNS, "URL", default=False)] = None
    base_port: Annotated[int | None, Parameter(group=RUNS, metavar="PORT")] = None

    disk: Annotated[str | None, _option("disk", GROUP, "KIND")] = None
    ack: Annotated[str | None, _option("ack", GROUP, "KIND")] = None
    leases_ms: Annotated[int | None, _option("leases_ms", GROUP, "MS")] = None
    record: Annotated[str | None, _option("record", GROUP, "KIND")] = None
    limits: Annotated[str | None, _option("limits", GROUP, "KIND")] = None
    data_file_size: Annotated[int | None, _option("data_file_size", GROUP, "BYTES")] = None
    index_file_size: Annotated[int | None, _option("index_file_size", GROUP, "BYTES")] = None

    def given(self) -> dict[str, Any]:
        """Return the given options as campaign keys and values."""
        given = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name not in OUTSIDE_CAMPAIGN
            and (value := getattr(self, field.name)) is not None
        }
        if self.faults is not None:
            given["faults"] = parse_faults(self.faults, discovery.find("faults"))
        if self.scenarios is not None:
            given["scenarios"] = parse_scenarios(self.scenarios)
        if self.victims is not None:
            given["victims"] = parse_names(self.victims)
        if self.option is not None:
            given["option"] = parse_names(self.option)
        return given
