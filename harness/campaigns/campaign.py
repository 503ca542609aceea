"""Campaigns: every option of a run as data, read from TOML, and written back as resolved.

The keys of the TOML are the long options of `shaketable run` with underscores ("time_limit" for
--time-limit); fields carry units in their names.

Source: Jepsen's options (jepsen.cli); FoundationDB's tests/fast/*.toml.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from shaketable.harness import discovery
from shaketable.harness.campaigns import scenarios
from shaketable.harness.campaigns.built_in import CAMPAIGNS
from shaketable.harness.campaigns.durations import seconds_of
from shaketable.harness.campaigns.scenarios import SCENARIOS
from shaketable.harness.campaigns.scripts import Step, check_event, read_steps, write_steps
from shaketable.harness.contracts.abilities import (
    HasSize,
    NamesBrokers,
    NeedsInstallation,
    RunsAlready,
    RunsOnHosts,
    TunesReplication,
    UsuallyPaced,
    UsuallyShaken,
    UsuallyUsed,
)
from shaketable.harness.contracts.clients import GroupWorkload, OpeningWorkload
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.plugins import Promises, Target, Workload
from shaketable.harness.contracts.program import PROGRAM, PROGRAM_WORDS
from shaketable.harness.contracts.rng import new_seed, rng_for
from shaketable.harness.contracts.simulation import SimulatesGroups
from shaketable.harness.discovery import target_with

BUILT_IN = CAMPAIGNS / "quick.toml"
"""The campaign of `run` without an argument."""

FILE_ONLY = frozenset({"script"})
"""Keys that only a campaign file can have, since they are too long for a command line."""


RANDOM_NODES_RANGE = (2, 7)
"""Range of random group sizes; even ones too: there a majority is half of the nodes plus one."""
EXISTING: Final = "existing"
"""The world of groups that run already."""
HOSTS: Final = "hosts"
"""The world of groups on other machines, started by OpenSSH."""
DEFAULT = "default"
"""As a workload or a fault: the defaults of the target."""
LOG = "log"
"""The workload of a target without a default."""
DEFAULT_FAULTS = ("kill", "pause", "partition")
"""The faults of a target without defaults."""


class Campaign(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={
        "nemesis_interval_s": "nemesis_interval",
        "fault_duration_min_s": "fault_duration_min",
        "fault_duration_max_s": "fault_duration_max",
        "time_limit_s": "time_limit",
        "steady_s": "steady",
        "rate_hz": "rate",
        "think_time_s": "think_time",
        "op_timeout_s": "op_timeout",
        "data_file_bytes": "data_file_size",
        "index_file_bytes": "index_file_size",
    },
):
    """One campaign.

    Attributes:
        name: the folder under the store.
        target: the system under test.
        option: options of the target's own, as "journal=off".
        mutant: planted bug to run it with.
        promise: another target, whose promises are judged in addition to the target's own.
        nodes: size of the group; ids are n0, n1, ... 0: two to seven, chosen by the seed.
        world: where it runs: as processes of this machine, each in a network namespace of its own
            (netns), or simulated, in virtual time.
        workload: what clients do; "default" is the target's default workload.
        queues: queues that the workload uses.
        key_skew: Zipf exponent: the n-th queue is chosen 1/n**key_skew as often as the first; 0:
            uniform.
        clients_per_key: how many clients use a queue, in groups that share the queues out; 0: all
            use
            all, or the workload's default.
        concurrency: clients in all: "10", or "3n" for three times the nodes.
        workers: processes that the clients are spread over.
        rate_hz: operations per second of all clients; 0: as fast as they can.
        think_time_s: mean pause of each client between two operations.
        op_timeout_s: an operation without an answer after this time is indeterminate.
        time_limit_s: how long clients work: steady and chaos phase, without setup, heal, drain and
            check (Jepsen's --time-limit).
        steady_s: how much of that passes before the first fault may start.
        faults: names of the faults to choose from; () for none. "default" means the target's
            defaults, as does a file that names none.
        scenarios: names of the scenarios to choose from besides (`harness.campaigns.scenarios`);
            ("all",) for all that can be made of these faults, () for none.
        victims: which nodes the faults of nodes select (`harness.faults.victims`, or names); () for
            each fault's own choice.
        nemesis_schedule: how faults follow each other: in random order at random times, in random
            order at regular times, or in the order in which they are named.
        faults_at_once: number of lanes of faults, each independent of the others.
        budget: what faults together may take out of the group: never so many nodes that no quorum
            is left, or any number (none).
        script: faults at a given time or on an event (`harness.campaigns.scripts`), in addition to
            the random ones; with a script and no `faults` there are no random ones.
        nemesis_interval_s: mean quiet time between the end of one fault and the next.
        fault_duration_min_s: shortest duration of a fault.
        fault_duration_max_s: longest duration of a fault.
        disk: how nodes write: to the real disk, or keeping unsynced writes in memory, so that a
            kill loses them as a power loss would.
        ack: what an acknowledgement means: copies on disks, or in page caches.
        leases_ms: how long a leader answers reads by its lease; 0: it asks a quorum.
        record: what each node records of itself: its inputs, for `replay`, or nothing.
        limits: limits of the brokers: the usual ones, or so low that clients reach them.
        data_file_bytes: size of the log's data files; small, so that a short run crosses many file
            boundaries.
        index_file_bytes: size of the log's index files; small for the same reason.
        online: whether operations are judged while the campaign runs, as far as they can be.
        stop_at_first_violation: whether a violation that is seen while it runs ends the chaos
            phase; what can be judged online then is.
        seed: all random choices derive from it; None: generate one and print it.
        store: where runs are kept.
        engine: what checks the history: Spark, or the same checks in one process, without Java,
            which is faster for histories of seconds.
        spark_master: which Spark checks the history.
        spark_remote: address of the Spark Connect server to use instead.
    """

    name: str = "quick"
    target: str = "dledger"
    option: tuple[str, ...] = ()
    mutant: str | None = None
    promise: str | None = None
    nodes: int = 3
    world: Literal["process", "netns", "sim", "existing", "hosts"] = "process"
    workload: str = DEFAULT
    queues: int = 4
    key_skew: float = 0.0
    clients_per_key: int = 0
    concurrency: str = "9n"
    workers: int = 2
    rate_hz: float = 800.0
    think_time_s: float = 0.0
    op_timeout_s: float = 1.0
    time_limit_s: float = 40.0
    steady_s: float = 5.0
    faults: tuple[str, ...] = DEFAULT_FAULTS
    scenarios: tuple[str, ...] = ("all",)
    victims: tuple[str, ...] = ()
    nemesis_schedule: Literal["random", "periodic", "sequence"] = "random"
    faults_at_once: int = 1
    budget: Literal["none", "quorum"] = "none"
    nemesis_interval_s: float = 0.8
    fault_duration_min_s: float = 0.3
    fault_duration_max_s: float = 3.0
    disk: Literal["real", "volatile"] = "volatile"
    ack: Literal["fsync", "page-cache"] = "fsync"
    leases_ms: int = 0
    record: Literal["none", "inputs"] = "none"
    limits: Literal["usual", "low"] = "usual"
    data_file_bytes: int = 1 << 20
    index_file_bytes: int = 1 << 18
    online: bool = False
    stop_at_first_violation: bool = False
    seed: str | None = None
    store: str = "store"
    engine: Literal["spark", "local"] = "spark"
    spark_master: str = "local[*]"
    spark_remote: str | None = None
    script: tuple[Step, ...] = ()

    @property
    def spark(self) -> str:
        """The Spark that checks the history: the server, if one is named."""
        return self.spark_remote or self.spark_master


KEYS = tuple(field.encode_name for field in msgspec.structs.fields(Campaign))
"""The keys of a campaign file."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    field.encode_name: get_args(field.type)
    for field in msgspec.structs.fields(Campaign)
    if get_origin(field.type) is Literal
}
"""Keys whose value is one of a few words, and these."""
DURATIONS: Final = frozenset(
    field.encode_name for field in msgspec.structs.fields(Campaign) if field.name.endswith("_s")
)
"""Keys in seconds; a file may also have "90s" or "1m30s", as the command line."""


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Campaign:
    """Read a campaign file; `overrides` (by TOML key) win over its values.

    Raises:
        UsageError: the file cannot be read, is not TOML, or has an invalid value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the campaign {path}: {why}") from error
    return loads(text, str(path), overrides)


def loads(text: str, where: str, overrides: Mapping[str, Any] | None = None) -> Campaign:
    """Read a campaign from TOML text; `where` names the file in errors.

    Raises:
        UsageError: as for `load`.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: not TOML: {error}") from error
    _convert(given, where)  # so that errors of the file name the file
    given |= overrides or {}
    usual = usual_of(given.get("target") or Campaign().target)
    return _convert({**usual, **given}, "command line" if overrides else where)


def usual_of(target: str) -> Mapping[str, float]:
    """Return the values that are usual for a target's campaigns, by key; none if it is unknown."""
    found = discovery.find("targets").get(target)
    return found.usual_campaign if isinstance(found, UsuallyPaced) else {}


def resolve(campaign: Campaign) -> Campaign:
    """Check every option against what exists, and generate a seed if none is given.

    Raises:
        UsageError: an unknown target, mutant, workload or fault, or an invalid number.
        HarnessError: the target is not installed.
    """
    check_numbers(msgspec.to_builtins(campaign))
    campaign = with_seed(campaign)
    clients(campaign)
    target = target_of(campaign)
    if campaign.mutant is not None and campaign.mutant not in target.mutants:
        raise UsageError(unknown_name(f"mutant of {target.name}", campaign.mutant, target.mutants))
    campaign = _in_its_world(campaign, target)
    _check_choices(campaign, target)
    if isinstance(target, NeedsInstallation) and (why := target.why_not_installed()) is not None:
        raise HarnessError(why)
    promises_of(campaign, target)
    require_remote(campaign.spark_remote)
    if campaign.world == "netns" and campaign.spark_remote is not None:
        raise UsageError("--spark-remote: from inside world netns no server can be reached")
    campaign = msgspec.structs.replace(campaign, workload=workload_of(campaign, target))
    workload = discovery.get("workloads", campaign.workload)
    workload.configured(workload_options(campaign))
    if isinstance(workload, GroupWorkload):
        _check_groups(campaign, target)
    check_clients(workload, target)
    known = discovery.find("faults")
    campaign = msgspec.structs.replace(campaign, faults=_expanded(campaign.faults, target))
    for fault in faults_of(campaign):
        if fault not in known:
            raise UsageError(unknown_name("fault", fault, known))
    _check_scenarios(campaign)
    for number, step in enumerate(campaign.script, 1):
        if step.on is not None:
            check_event(step.on, known, f"script {number}")
    if campaign.world == "sim" and campaign.record != "none":
        raise UsageError(f"record {campaign.record}: in world sim the seed alone repeats a run")
    return campaign


def _in_its_world(campaign: Campaign, target: Target) -> Campaign:
    """Return the campaign with its target's group size, and the world of a group elsewhere.

    Raises:
        UsageError: it asks for others, or for the world of such groups without one.
    """
    usual = Campaign()
    size: int | None
    if isinstance(target, RunsAlready):
        world, size, how = EXISTING, len(target.addresses), "runs already"
    elif isinstance(target, RunsOnHosts):
        world, size, how = HOSTS, len(target.hosts.ssh), "runs on other machines"
    elif campaign.world in (EXISTING, HOSTS):
        key = "nodes" if campaign.world == EXISTING else "hosts"
        raise UsageError(
            f"--world {campaign.world}: {target.name} is started by {PROGRAM} on this machine;"
            f" it is for targets of shaketable.toml that have {key} (docs/your-own-system.md)"
        )
    else:
        world, how = campaign.world, "runs here"
        size = target.group_size if isinstance(target, HasSize) else None
    if campaign.world not in (usual.world, world):
        raise UsageError(f"--world {campaign.world}: {target.name} {how}; its world is {world}")
    if size is not None and campaign.nodes not in (usual.nodes, size):
        raise UsageError(f"--nodes {campaign.nodes}: {target.name} has {size}")
    return msgspec.structs.replace(campaign, world=world, nodes=size or campaign.nodes)


def worlds_of(target: Target) -> tuple[str, ...]:
    """Return the worlds in which a target can run, the usual one first."""
    if isinstance(target, RunsAlready):
        return (EXISTING,)
    if isinstance(target, RunsOnHosts):
        return (HOSTS,)
    return ("process", "netns", *(("sim",) if isinstance(target, SimulatesGroups) else ()))


def with_seed(campaign: Campaign) -> Campaign:
    """Return the campaign with a seed, and with a group size chosen by it if `nodes` is 0."""
    seed = campaign.seed if campaign.seed is not None else new_seed()
    nodes = campaign.nodes or rng_for(seed, "nodes").randint(*RANDOM_NODES_RANGE)
    return msgspec.structs.replace(campaign, seed=seed, nodes=nodes)


def default_faults(target: Target) -> tuple[str, ...]:
    """Return the faults of campaigns of this target that name none."""
    return target.default_faults if isinstance(target, UsuallyShaken) else DEFAULT_FAULTS


def default_workload(target: Target) -> str:
    """Return the workload of campaigns of this target that name none."""
    return target.default_workload if isinstance(target, UsuallyUsed) else LOG


def workload_of(campaign: Campaign, target: Target) -> str:
    """Return the name of the campaign's workload, with "default" resolved."""
    return default_workload(target) if campaign.workload == DEFAULT else campaign.workload


def _expanded(faults: Iterable[str], target: Target) -> tuple[str, ...]:
    """Replace "default" by the target's default faults."""
    found: list[str] = []
    for fault in faults:
        found += default_faults(target) if fault == DEFAULT else (fault,)
    return tuple(dict.fromkeys(found))


def _check_scenarios(campaign: Campaign) -> None:
    """Refuse unknown scenarios, and names that steps of a script must not remember."""
    named = campaign.scenarios if campaign.scenarios != ("all",) else ()
    scripted = tuple(step.scenario for step in campaign.script if step.scenario)
    for name in (*named, *scripted):
        if name not in SCENARIOS:
            raise UsageError(unknown_name("scenario", name, SCENARIOS))
    for number, step in enumerate(campaign.script, 1):
        if step.remember:
            try:
                scenarios.check_name(step.remember)
            except UsageError as error:
                raise UsageError(f"script {number}: {error}") from error


def promises_of(campaign: Campaign, target: Target) -> Promises | None:
    """Return the promises of a campaign that raises its target's by hand, else None.

    Raises:
        UsageError: `promise` names no target.
    """
    if campaign.promise is None or campaign.promise == campaign.target:
        return None
    other: Target = discovery.get("targets", campaign.promise)
    return target.promises.raised_to(other.promises, other.name)


def _check_choices(campaign: Campaign, target: Target) -> None:
    """Refuse options of replication that the target does not support."""
    if campaign.ack != "fsync" and not isinstance(target, TunesReplication):
        raise UsageError(f"ack {campaign.ack}: {target.name} acknowledges in its own way")
    most_ms = target.lease_max_ms if isinstance(target, TunesReplication) else 0
    if campaign.leases_ms > most_ms:
        raise UsageError(f"leases_ms {campaign.leases_ms}: {target.name} takes {most_ms} at most")


def check_clients(workload: Workload, target: Target) -> None:
    """Refuse a workload that the target's clients cannot run, if the target declares their type.

    Raises:
        UsageError: they cannot run it.
    """
    of_groups = isinstance(workload, GroupWorkload)
    client: type | None = getattr(target, "group_client_type" if of_groups else "client_type", None)
    if client is None or not isinstance(workload, OpeningWorkload):
        return
    if (why := workload.why_not(client)) is not None:
        raise UsageError(f"workload {workload.name}: clients of {target.name} {why}")


def _check_groups(campaign: Campaign, target: Target) -> None:
    if not isinstance(target, NamesBrokers):
        raise UsageError(f"workload {campaign.workload}: {target.name} knows no consumer groups")


def require_remote(address: str | None) -> None:
    """Check that this is the address of a Spark Connect server.

    Raises:
        UsageError: it is not.
    """
    if address is not None and not address.startswith("sc://"):
        raise UsageError(f"--spark-remote {address}: expected sc://HOST:PORT")


def parse_faults(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Parse a list of faults from the command line: "kill,pause", "none" or "all"."""
    names = parse_names(text)
    if names == ("all",):
        return tuple(sorted(known))
    return () if names == ("none",) else names


def parse_scenarios(text: str) -> tuple[str, ...]:
    """Parse a list of scenarios from the command line: "figure-8", "none" or "all"."""
    names = parse_names(text)
    return () if names == ("none",) else names


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names, without duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def clients(campaign: Campaign) -> int:
    """Return the number of clients that `concurrency` means ("10", or "3n").

    Raises:
        UsageError: it is not a number of clients.
    """
    match = re.fullmatch(r"([0-9]{1,4})(n?)", campaign.concurrency)
    count = int(match[1]) * (campaign.nodes if match[2] else 1) if match else 0
    if not 1 <= count <= CLIENTS_MAX:
        raise UsageError(
            f'concurrency {campaign.concurrency!r}: expected clients such as "10", or "3n" for '
            f"three times the nodes, 1 to {CLIENTS_MAX} in all"
        )
    return count


def target_of(campaign: Campaign) -> Target:
    """Return the target, with the options that the campaign chooses.

    Raises:
        UsageError: there is no such target, or it has no such option, or not with that value.
        HarnessError: as `discovery.get`.
    """
    return target_with(campaign.target, campaign.option)


def node_names(campaign: Campaign) -> tuple[str, ...]:
    """Return the ids of the group's nodes: n0, n1, ..."""
    return tuple(f"n{number}" for number in range(campaign.nodes))


def workload_options(campaign: Campaign) -> dict[str, Any]:
    """Return the options that configure the workload."""
    return {
        "queues": campaign.queues,
        "key_skew": campaign.key_skew,
        "clients_per_key": campaign.clients_per_key,
        "clients": clients(campaign),
    }


def faults_of(campaign: Campaign) -> tuple[str, ...]:
    """Return the names of all requested faults: the random ones, and those of the script."""
    scripted = [step.fault for step in campaign.script if step.fault]
    for step in campaign.script:
        scripted += sorted(SCENARIOS[step.scenario].faults) if step.scenario in SCENARIOS else ()
    return tuple(dict.fromkeys((*campaign.faults, *scripted)))


def fault_options(campaign: Campaign) -> dict[str, Any]:
    """Return the options that configure the faults."""
    return {
        "victims": list(campaign.victims),
        "nodes": list(node_names(campaign)),
        "disk": campaign.disk,
        "world": campaign.world,
        "has_name_server": needs_name_server(campaign),
    }


def needs_name_server(campaign: Campaign) -> bool:
    """Return whether the clients of a campaign find its nodes through a name server."""
    target = target_of(campaign)
    if isinstance(discovery.get("workloads", workload_of(campaign, target)), GroupWorkload):
        return True
    return isinstance(target, NamesBrokers) and target.needs_name_server


def to_toml(campaign: Campaign) -> str:
    """Return a campaign as TOML that `loads` reads back as an equal one."""
    lines = ["# A shaketable campaign. Keys are the options of `shaketable run`.\n"]
    lines += [
        f"{key} = {toml_value(value)}\n"
        for key, value in msgspec.to_builtins(campaign).items()
        if value is not None and key not in FILE_ONLY
    ]
    for table in write_steps(campaign.script):
        lines.append("\n[[script]]\n")
        lines += [f"{toml_key(key)} = {toml_value(value)}\n" for key, value in table.items()]
    return "".join(lines)


def _convert(given: Mapping[str, Any], where: str) -> Campaign:
    """Convert TOML's values to a campaign; report what does not fit in one line."""
    for key in given:
        if key not in KEYS:
            raise UsageError(f"{where}: {unknown_name('key', key, KEYS)}")
    try:
        plain = {key: _plain(key, value) for key, value in given.items() if value is not None}
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    if "script" in plain:
        plain["script"] = read_steps(plain["script"], where)
        plain.setdefault("faults", ())
    plain.setdefault("faults", (DEFAULT,))
    try:
        return msgspec.convert(plain, Campaign)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_invalid_value(error, plain)}") from error


def _plain(key: str, value: Any) -> Any:
    """Accept seed = 7, concurrency = 10, faults = "kill,pause" and time_limit = "1m30s".

    Raises:
        ValueError: it is no duration; the message says what is expected.
    """
    if key in DURATIONS and isinstance(value, str):
        try:
            return seconds_of(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    if key in ("seed", "concurrency") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if key == "faults" and isinstance(value, str):
        return parse_faults(value, discovery.find("faults") if value.strip() == "all" else ())
    if key in ("victims", "option") and isinstance(value, str):
        return parse_names(value)
    if key == "scenarios" and isinstance(value, str):
        return parse_scenarios(value)
    return value


def _invalid_value(error: msgspec.ValidationError, given: Mapping[str, Any]) -> str:
    """Return which key is wrong, what was expected, and its value."""
    match = re.fullmatch(r"(.*?) - at `\$\.(\w+)(.*)`", str(error), re.DOTALL)
    if match is None:
        return str(error)
    what, key, inside = match.groups()
    if key in CHOICES and isinstance(given[key], str):
        return unknown_name(key, given[key], CHOICES[key])
    shown = json.dumps(given.get(key), default=str, ensure_ascii=False)
    return f"{key}{inside}: {what.replace('`', '')}: {shown}"


# Writing TOML values: the standard library only reads TOML.

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Return a string, number, boolean, list or table as TOML on one line."""
    if isinstance(value, str):  # JSON's escapes are TOML's, except for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inside = (f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    assert isinstance(value, int | float), f"no TOML for {value!r}"
    return repr(value)


def toml_key(key: str) -> str:
    """Return a key as TOML: bare if possible, else quoted."""
    return key if _BARE.fullmatch(key) else toml_value(key)


# The ranges of a campaign's numbers, and the constraints between them.

NODES_MAX = 9
CLIENTS_MAX = 1000
WORKERS_MAX = 64
QUEUES_MAX = 1000
RATE_MAX_HZ = 1e6
THINK_TIME_MAX_S = 600
SKEW_MAX = 10
TIME_LIMIT_MAX_S = 7 * 86_400.0
FILE_BYTES_MAX = 1 << 30
INDEX_UNIT_BYTES = 32
FAULT_DURATION_MIN_S = 0.2
"""Shortest fault, squeezed or not: in less time, not even a killed process would be back."""
FILE_BYTES_MIN = 4096
LANES_MAX = 8
LEASES_MAX_MS = 60_000

RANGES: Mapping[str, tuple[float, float]] = {
    "nodes": (0, NODES_MAX),
    "queues": (1, QUEUES_MAX),
    "workers": (1, WORKERS_MAX),
    "key_skew": (0, SKEW_MAX),
    "clients_per_key": (0, CLIENTS_MAX),
    "rate": (0, RATE_MAX_HZ),
    "think_time": (0, THINK_TIME_MAX_S),
    "op_timeout": (0.05, 600),
    "time_limit": (1, TIME_LIMIT_MAX_S),
    "steady": (0, TIME_LIMIT_MAX_S),
    "faults_at_once": (1, LANES_MAX),
    "leases_ms": (0, LEASES_MAX_MS),
    "nemesis_interval": (0, TIME_LIMIT_MAX_S),
    "fault_duration_min": (FAULT_DURATION_MIN_S, TIME_LIMIT_MAX_S),
    "fault_duration_max": (FAULT_DURATION_MIN_S, TIME_LIMIT_MAX_S),
    "data_file_size": (FILE_BYTES_MIN, FILE_BYTES_MAX),
    "index_file_size": (FILE_BYTES_MIN, FILE_BYTES_MAX),
}


def check_numbers(values: Mapping[str, Any]) -> None:
    """Check the numbers of a campaign, by the keys of its file.

    Raises:
        UsageError: one is out of range.
    """
    for key, (least, most) in RANGES.items():
        if not least <= values[key] <= most:  # also refuses NaN
            raise UsageError(f"{key} {values[key]:g}: expected {least:g} to {most:g}")
    least, most = values["fault_duration_min"], values["fault_duration_max"]
    if least > most:
        raise UsageError(f"fault_duration_min {least:g} is more than fault_duration_max {most:g}")
    steady, limit = values["steady"], values["time_limit"]
    if steady > limit:
        raise UsageError(f"steady {steady:g} is more than time_limit {limit:g}")
    if values["index_file_size"] % INDEX_UNIT_BYTES:
        raise UsageError(
            f"index_file_size {values['index_file_size']}: not a multiple of {INDEX_UNIT_BYTES}"
        )


# ---- the command line that repeats a run -------------------------------------------------------

OPTIONS_TYPED_MAX: Final = 10
"""A command line with more options than these is replaced by the campaign file."""

NOT_PART_OF_RUN: Final = frozenset({"engine", "spark_master", "spark_remote", "store"})
"""Keys about where a history is stored and what checks it; they do not affect the run."""


def repeat_command(campaign: Campaign, folder: Path) -> str:
    """Return the command line that repeats a resolved campaign: its options, or its file.

    The options that differ from those of `run` without a file are enough, as long as they are few;
    past `OPTIONS_TYPED_MAX` the campaign file in the run's folder is shorter.
    """
    defaults: dict[str, Any] = msgspec.to_builtins(load(BUILT_IN))
    values: dict[str, Any] = msgspec.to_builtins(campaign)
    defaults |= usual_of(campaign.target)
    words = [*PROGRAM_WORDS, "run"]
    target = discovery.find("targets").get(campaign.target)
    # The target's default faults; unknown if the target is not installed.
    usual = () if target is None else ((DEFAULT,), default_faults(target))
    if target is not None and campaign.workload == default_workload(target):
        defaults["workload"] = campaign.workload
    defaults["faults"] = values["faults"] if campaign.faults in usual else None
    unlike = [
        (key, value)
        for key, value in values.items()
        if value != defaults[key] and key not in NOT_PART_OF_RUN
    ]
    if len(unlike) > OPTIONS_TYPED_MAX or FILE_ONLY & {key for key, _ in unlike}:
        return shlex.join([*words, str(folder / "campaign.toml")])
    for key, value in unlike:
        words.append(f"--{key.replace('_', '-')}")
        words += [] if value is True else [_word(value)]
    return shlex.join(words)


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(value) or "none"
    # All digits: a rounded number would generate another schedule.
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
