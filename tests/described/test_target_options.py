"""Options of a target's own: what a campaign chooses reaches nodes, clients and promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from shaketable.harness.campaigns.campaign import (
    Campaign,
    loads,
    repeat_command,
    target_of,
    to_toml,
)
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.described.target import DescribedTarget
from shaketable.harness.described.target_file import read
from shaketable.harness.discovery import parse_options, target_with

FILE = """
[targets.kvs]
start = ["kvs", "--sync={sync}", "--limit={limit}"]
client = "client.py"
options = { sync = "always", limit = 5, reads = "log", nested = { a = 1 } }
choices = { sync = ["always", "never"] }
promises = { durable_under = ["process", "network", "power"], linearizable = ["read", "write"] }

[targets.kvs.promises_with.sync.never]
durable_under = ["network", "pause"]
note = "Without a sync a kill loses writes."

[targets.kvs.promises_with.reads.local]
linearizable = ["write"]
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DescribedTarget:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("def read(node, key): return node.options['sync']\n")
    file = tmp_path / "shaketable.toml"
    file.write_text(FILE)
    return DescribedTarget("kvs", read(file)["kvs"], file)


def layout(folder: Path) -> NodeLayout:
    return NodeLayout("n0", folder, Address("127.0.0.1", 1), Address("127.0.0.1", 2), {})


def test_options_are_placeholders_and_are_replaced(target: DescribedTarget, tmp_path: Path) -> None:
    assert target.prepare(layout(tmp_path)).argv == ("kvs", "--sync=always", "--limit=5")
    chosen = target.configured({"sync": "never", "limit": "7"})
    assert chosen.prepare(layout(tmp_path)).argv == ("kvs", "--sync=never", "--limit=7")
    assert chosen.client_type.options == {
        "sync": "never",
        "limit": 7,
        "reads": "log",
        "nested": {"a": 1},
    }
    assert target.options == {"sync": "always", "limit": "5", "reads": "log"}


def test_an_option_takes_from_the_promises(target: DescribedTarget) -> None:
    weaker = target.configured({"sync": "never"}).promises
    assert {"partition", "pause"} <= weaker.durable_under
    assert not {"kill", "power"} & weaker.durable_under
    assert weaker.linearizable == {"read", "write"}
    assert weaker.note == "Without a sync a kill loses writes."
    assert target.configured({"reads": "local"}).promises.linearizable == {"write"}
    assert {"kill", "power"} <= target.promises.durable_under


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("snyc=never", "--option snyc: unknown option of kvs 'snyc'; did you mean 'sync'?"),
        ("sync=nver", "--option sync: unknown value 'nver'; did you mean 'never'?"),
        ("limit=many", "--option limit=many: expected a whole number"),
        ("nested=1", "--option nested: unknown option of kvs 'nested'"),
        ("sync", "--option sync: expected NAME=VALUE"),
        ("=never", "--option =never: expected NAME=VALUE"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line(
    target: DescribedTarget, given: str, line: str
) -> None:
    with pytest.raises(UsageError) as refused:
        target_with("kvs", (given,))
    assert str(refused.value).startswith(line)


def test_a_target_without_options_says_so() -> None:
    with pytest.raises(UsageError, match="--option journal: dledger has no options of its own"):
        target_with("dledger", ("journal=off",))


def test_the_campaign_and_the_line_that_repeats_it_have_them(target: DescribedTarget) -> None:
    campaign = loads('target = "kvs"\noption = "sync=never,limit=7"', "file")
    assert campaign.option == ("sync=never", "limit=7")
    assert loads(to_toml(campaign), "file") == campaign
    assert "--option sync=never,limit=7" in repeat_command(campaign, Path("run"))
    assert target_of(campaign) is target_of(campaign)
    assert parse_options(campaign.option) == {"sync": "never", "limit": "7"}
    assert target_of(Campaign(target="kvs")).promises == target.promises


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ('options = { id = "x" }', "options: id is a placeholder of its own"),
        ('choices = { sync = ["a"] }', "choices: unknown option 'sync'"),
        (
            'options = { s = "b" }\nchoices = { s = ["a"] }',
            "choices.s does not have what options.s",
        ),
        ("promises_with = { s = { a = {} } }", "promises_with: unknown option 's'"),
        (
            'options = { s = "a" }\npromises_with = { s = { a = { durable_under = ["fire"] } } }',
            "durable_under knows no 'fire'",
        ),
    ],
)
def test_a_table_that_says_it_wrong_is_one_line(tmp_path: Path, key: str, line: str) -> None:
    file = tmp_path / "shaketable.toml"
    file.write_text(f'[targets.kvs]\nstart = ["kvs"]\nclient = "client.py"\n{key}\n')
    with pytest.raises(UsageError) as refused:
        read(file)
    assert line in str(refused.value)
