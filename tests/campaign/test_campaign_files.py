"""Campaign files: read, refused with one clear line, written back as they were resolved."""

import re
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness import discovery
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import (
    BUILT_IN,
    DEFAULT_FAULTS,
    Campaign,
    clients,
    load,
    loads,
    parse_faults,
    repeat_command,
    to_toml,
)
from shaketable.harness.campaigns.scripts import Step
from shaketable.harness.contracts.errors import UsageError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
FLOATS = st.floats(0, 1e9)
SECONDS = st.floats(0.1, 1e5)
STEPS = st.builds(
    Step,
    fault=TEXTS,
    at=SECONDS,
    duration=SECONDS,
    victims=st.lists(TEXTS, max_size=2).map(tuple),
    plan=st.dictionaries(
        st.sampled_from(("order", "a b", "\x7f")),
        st.booleans() | TEXTS | FLOATS | st.lists(TEXTS, max_size=2),
    ),
) | st.builds(Step, fault=TEXTS, on=TEXTS, after=SECONDS, times=st.integers(1, 9))
CAMPAIGNS = st.builds(
    Campaign,
    script=st.lists(STEPS, max_size=2).map(tuple),
    name=TEXTS,
    target=TEXTS,
    mutant=st.none() | TEXTS,
    nodes=st.integers(0, 99),
    workload=TEXTS,
    queues=st.integers(-(2**60), 2**60),
    concurrency=TEXTS,
    rate_hz=FLOATS,
    think_time_s=FLOATS,
    key_skew=FLOATS,
    clients_per_key=st.integers(-9, 9),
    op_timeout_s=FLOATS,
    time_limit_s=FLOATS,
    faults=st.lists(TEXTS.filter(lambda name: name != "all"), max_size=4).map(tuple),
    disk=st.sampled_from(("real", "volatile")),
    seed=st.none() | TEXTS,
    store=TEXTS,
)


@given(CAMPAIGNS)
def test_a_campaign_is_read_back_as_it_was_written(campaign: Campaign) -> None:
    assert loads(to_toml(campaign), "x.toml") == campaign


def test_the_built_in_campaign_is_what_the_defaults_say() -> None:
    assert load(BUILT_IN) == Campaign(
        faults=("default",), data_file_bytes=65_536, index_file_bytes=16_384
    )


def test_people_may_write_it_the_short_way() -> None:
    campaign = loads('seed = 7\nconcurrency = 10\nfaults = "kill, pause"\nrate = 100', "x.toml")
    assert (campaign.seed, campaign.concurrency, campaign.rate_hz) == ("7", "10", 100.0)
    assert campaign.faults == ("kill", "pause")
    assert loads('faults = "none"', "x.toml").faults == ()


def test_the_command_line_wins() -> None:
    given = {"nodes": 5, "faults": ("kill",), "seed": "9", "mutant": None}
    campaign = loads('nodes = 3\nmutant = "m"\nrate = 5.0', "x.toml", given)
    assert (campaign.nodes, campaign.faults, campaign.seed) == (5, ("kill",), "9")
    assert (campaign.rate_hz, campaign.mutant) == (5.0, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nodez = 3", r"x\.toml: unknown key 'nodez'; did you mean 'nodes'\? \(there are: "),
        ("zzz = 3", r"x\.toml: unknown key 'zzz' \(there are: "),
        ('nodes = "three"', r'x\.toml: nodes: Expected int, got str: "three"$'),
        ("nodes = true", r"x\.toml: nodes: Expected int, got bool: true$"),
        ('faults = ["kill", 3]', r'x\.toml: faults\[1\]: Expected str, got int: \["kill", 3\]$'),
        (
            'world = "sym"',
            r"x\.toml: unknown world 'sym'; did you mean 'sim'\?"
            r" \(there are: existing, hosts, netns, process, sim",
        ),
        ('disk = "reel"', r"x\.toml: unknown disk 'reel'; did you mean 'real'\?"),
        ("seed = 1979-05-27", r"x\.toml: seed: Expected str.*1979-05-27"),
        ("nodes = ", r"x\.toml: not TOML: Invalid value"),
        ("nodes = 3\nnodes = 3", r"x\.toml: not TOML: "),
    ],
)
def test_what_a_file_cannot_say_is_told_in_one_line(text: str, line: str) -> None:
    with pytest.raises(UsageError) as told:
        loads(text, "x.toml")
    assert re.match(line, str(told.value)), told.value
    assert "\n" not in str(told.value)


def test_the_command_line_is_blamed_for_its_own() -> None:
    with pytest.raises(UsageError, match=r"^command line: unknown world 'sym'"):
        loads("nodes = 3", "x.toml", {"world": "sym"})


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the campaign .*a\.toml: No such file"):
        load(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"cannot read the campaign .*b\.toml: not UTF-8"):
        load(tmp_path / "b.toml")


# ---- resolving ---------------------------------------------------------------------------


class FakeTarget:
    name = "dledger"
    mutants = MappingProxyType({"ack-before-quorum": "acknowledges too early"})


@pytest.fixture
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = discovery.get
    monkeypatch.setattr(
        discovery, "get", lambda kind, name: FakeTarget if kind == "targets" else real(kind, name)
    )
    faults = dict.fromkeys(DEFAULT_FAULTS)
    find = discovery.find
    monkeypatch.setattr(discovery, "find", lambda kind: faults if kind == "faults" else find(kind))


@pytest.mark.usefixtures("_fakes")
def test_resolving_draws_a_seed_and_keeps_one_given() -> None:
    first, second = campaigns.resolve(Campaign()), campaigns.resolve(Campaign())
    assert first.seed
    assert first.seed != second.seed
    assert msgspec.structs.replace(first, seed=None) == Campaign(workload="log")
    given = Campaign(seed="7", mutant="ack-before-quorum", workload="log")
    assert campaigns.resolve(given) == given
    assert campaigns.resolve(Campaign(seed="")).seed == ""


@pytest.mark.usefixtures("_fakes")
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"faults": ("kill", "partitoin")}, "unknown fault 'partitoin'; did you mean 'partition'?"),
        ({"scenarios": ("figure-9",)}, "unknown scenario 'figure-9'; did you mean 'figure-8'?"),
        ({"mutant": "ack-after-quorum"}, "unknown mutant of dledger .* mean 'ack-before-quorum'?"),
        ({"workload": "lag"}, "unknown workload 'lag'; did you mean 'log'?"),
        ({"nodes": -1}, "nodes -1: expected 0 to 9"),
        ({"world": "sim", "record": "inputs"}, "record inputs: in world sim the seed alone"),
        ({"queues": 0}, "queues 0: expected 1 to 1000"),
        ({"rate_hz": float("nan")}, "rate nan: expected 0 to"),
        ({"think_time_s": -1.0}, "think_time -1: expected 0 to 600"),
        ({"key_skew": 11.0}, "key_skew 11: expected 0 to 10"),
        ({"clients_per_key": -1}, "clients_per_key -1: expected 0 to 1000"),
        ({"clients_per_key": 2}, "log: clients_per_key 2 of 27 clients: 14 groups need 14 queues"),
        ({"time_limit_s": float("inf")}, "time_limit inf: expected 1 to"),
        ({"steady_s": 50.0}, "steady 50 is more than time_limit 40"),
        ({"fault_duration_min_s": 9.0}, "fault_duration_min 9 is more than fault_duration_max"),
        ({"index_file_bytes": 5000}, "index_file_size 5000: not a multiple of 32"),
        ({"concurrency": "many"}, "concurrency 'many': expected clients such as"),
        ({"concurrency": "0"}, "concurrency '0': expected clients such as"),
        ({"concurrency": "500n"}, "concurrency '500n': expected clients such as"),
    ],
)
def test_choices_that_cannot_be_are_refused(changes: dict, line: str) -> None:
    with pytest.raises(UsageError, match=line.replace("?", r"\?")) as told:
        campaigns.resolve(Campaign(**changes))
    assert "\n" not in str(told.value)


def test_concurrency_is_in_clients_or_in_nodes() -> None:
    assert clients(Campaign(concurrency="10", nodes=5)) == 10
    assert clients(Campaign(concurrency="3n", nodes=5)) == 15


def test_faults_of_the_command_line() -> None:
    assert parse_faults("kill, pause,kill", ()) == ("kill", "pause")
    assert parse_faults("none", ("kill",)) == ()
    assert parse_faults("all", ("pause", "kill")) == ("kill", "pause")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("script = 3", r"f: script: expected \[\[script\]\] tables, 1000 at most"),
        ("[[script]]\nat = 1", "f: script 1: expected a table with a fault's name as `fault`"),
        ('[[script]]\nfault = "kill"', "f: script 1: expected `at` .* or `on` .*, one of them"),
        ('[[script]]\nfault = "kill"\nat = "1"', r"f: script 1: Expected float .* at \$.at"),
        ('[[script]]\nfault = "kill"\nat = nan', "f: script 1: at nan: expected 0 or more"),
        ('[[script]]\nfault = "kill"\nat = 1\ntimes = 2', "f: script 1: `times` is for events"),
        ('[[script]]\nfault = "kil"\nat = 1', "unknown fault 'kil'; did you mean 'kill'"),
        ('[[script]]\nfault = "kill"\non = "leader"', "unknown event 'leader'"),
        ('[[script]]\nfault = "kill"\non = "sync:0"', "unknown event 'sync:0'"),
        ('[[script]]\nfault = "kill"\non = "healed:x"', "on 'healed:x': unknown fault 'x'"),
    ],
)
def test_what_a_script_cannot_say_is_told_in_one_line(text, line) -> None:
    with pytest.raises(UsageError, match=line):
        campaigns.resolve(loads(text, "f"))


def test_how_many_nodes_there_are_may_be_drawn() -> None:
    sizes = {campaigns.resolve(Campaign(seed=str(seed), nodes=0)).nodes for seed in range(60)}
    assert sizes == {2, 3, 4, 5, 6, 7}
    asked = campaigns.resolve(Campaign(seed="7", nodes=0, concurrency="3n"))
    assert campaigns.resolve(Campaign(seed="7", nodes=0, concurrency="3n")) == asked
    line = repeat_command(asked, Path("x"))
    assert f"--nodes {asked.nodes} " in line, "the size is known by now"


def test_seconds_are_numbers_or_durations_in_a_file_too() -> None:
    text = 'time_limit = "1m30s"\nsteady = "500ms"\nvictims = "all"\nfaults = ["kill"]\n'
    read = loads(text, "f")
    assert (read.time_limit_s, read.steady_s, read.victims) == (90.0, 0.5, ("all",))
    with pytest.raises(UsageError, match=r'^f: time_limit: expected seconds, .* not "soon"$'):
        loads('time_limit = "soon"', "f")
