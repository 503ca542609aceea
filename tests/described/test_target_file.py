"""`shaketable.toml`: what is read, and the one line about what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from shaketable.harness import described
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.promises import FAULTS_OF_LINKS
from shaketable.harness.described.target_file import filled, read

LEAST = '[targets.kvs]\nstart = ["./server"]\nclient = "client.py"\n'


def written(folder: Path, text: str) -> Path:
    file = folder / described.FILE_NAME
    file.write_text(text)
    return file


def test_a_target_of_three_lines(tmp_path: Path) -> None:
    table = read(written(tmp_path, LEAST))["kvs"]
    assert (table.start, table.client, table.leader) == (("./server",), "client.py", None)
    assert table.promises.faults >= {"kill", "pause", "partition"} | FAULTS_OF_LINKS


def test_families_and_faults_are_promised(tmp_path: Path) -> None:
    text = '[targets.a.promises]\ndurable_under = ["kill", "clock"]\n'
    table = read(written(tmp_path, LEAST.replace("kvs", "a") + text))["a"]
    assert table.promises.faults == {"kill", "clock"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[targets.kvs", "not TOML"),
        ("[target.kvs]\n", "unknown table 'target' (there is: targets)"),
        ("targets = 3\n", "targets is a table: [targets.NAME]"),
        ("[targets.Kvs]\n", "targets: 'Kvs' is no name"),
        (
            '[targets.kvs]\nclient = "c.py"\n',
            "targets.kvs: give start (a node's command), or nodes",
        ),
        (LEAST.replace('["./server"]', "[]"), "give start"),
        (LEAST.replace("./server", "{nodes}"), "start has an unknown placeholder {nodes}"),
        (LEAST + 'peer_format = "{peer}"\n', "peer_format has an unknown placeholder {peer}"),
        (LEAST + 'env = { A = "{b}" }\n', "env.A has an unknown placeholder {b}"),
        (LEAST + "stop = 1\n", "Object contains unknown field `stop`"),
        (LEAST + "[targets.kvs.ready]\n", "targets.kvs.ready: give one of http, log and command"),
        (
            LEAST + "further_ports = ['quorum']\n",
            "further_ports needs one_address or own_addresses",
        ),
        (
            LEAST + "own_addresses = true\nfurther_ports = ['peer']\n",
            "further_ports: peer is a placeholder of its own; rename it",
        ),
        (
            LEAST + "own_addresses = true\nfurther_ports = ['admin', 'admin']\n",
            "further_ports: one of them is named twice",
        ),
        (
            LEAST + "own_addresses = true\nfurther_ports = ['Admin']\n",
            "further_ports: 'Admin' is no name (lower-case letters alone)",
        ),
        (LEAST + 'own_addresses = true\nfurther_ports = ["a\\n"]\n', "is no name"),
        (
            LEAST + "own_addresses = true\nfurther_ports = ['admin']\noptions = { admin = 1 }\n",
            "options: admin is a placeholder of its own; rename it",
        ),
        (LEAST + '[targets.kvs.ready]\nlog = "("\n', "log is no regular expression"),
        (LEAST + '[targets.kvs.leader]\nleader = "a"\n', "give one of http, command and log"),
        (LEAST + '[targets.kvs.leader]\nhttp = "a"\n', "give the path of leader, or of leads"),
        (LEAST + '[targets.kvs.leader]\nlog = "("\nleads = "a"\n', "log is no regular expression"),
        (
            LEAST + '[targets.kvs.leader]\nlog = "(?P<a>x)"\nleads = "a"\nterm = "b"\n',
            "log has no group (?P<b>...)",
        ),
        (LEAST + "size = 10\n", "targets.kvs.size: Expected `int` <= 9"),
        (LEAST + "size = -1\n", "targets.kvs.size: Expected `int` >= 0"),
        (LEAST + 'disk = "volatil"\n', "disk: unknown disk 'volatil'; did you mean 'volatile'?"),
        (LEAST + 'extends = "kv"\n', "extends: unknown target 'kv'; did you mean 'kvs'?"),
        (LEAST + 'extends = "kvs"\n', "targets.kvs: extends: kvs extends itself"),
        (LEAST + '[targets.a]\nextends = "b"\n[targets.b]\nextends = "a"\n', "extends itself"),
        (LEAST + "[targets.a]\nextends = 3\n", "targets.a: extends: unknown target '3'"),
        (LEAST + 'leader = { command = ["a"], body = "{}", leads = "a" }\n', "body is posted to"),
        (LEAST + 'leader = { http = "a", body = "{x}", leads = "a" }\n', "leader.body has an"),
        (
            LEAST + '[targets.kvs.promises]\ndurable_under = ["fire"]\n',
            "durable_under knows no 'fire'",
        ),
    ],
)
def test_one_line_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read(file)
    assert told in str(error.value)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


def test_a_target_is_another_one_with_differences(tmp_path: Path) -> None:
    text = (
        LEAST
        + "one_port = true\nenv = { A = 'a', B = 'b' }\n"
        + '[targets.lazy]\nextends = "kvs"\narguments = ["--lazy"]\nenv = { A = "c" }\n'
        + '[targets.lazier]\nextends = "lazy"\nsummary = "Lazier."\none_port = false\n'
    )
    tables = read(written(tmp_path, text))
    lazy, lazier = tables["lazy"], tables["lazier"]
    assert (lazy.start, lazy.client, lazy.one_port) == (("./server",), "client.py", True)
    assert lazy.env == {"A": "c"}, "a key is replaced as a whole"
    assert (lazier.arguments, lazier.env) == (lazy.arguments, lazy.env)
    assert (lazier.summary, lazier.one_port) == ("Lazier.", False)
    assert tables["kvs"].arguments == ()


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / described.FILE_NAME
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read(file)


def test_the_nearest_file_above_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert described.nearest_file(inner) is None
    outer = written(tmp_path, LEAST)
    assert described.nearest_file(inner) == outer
    near = written(inner, LEAST)
    assert described.nearest_file(inner) == near


def test_only_placeholders_are_filled() -> None:
    assert filled("{id}:{client} {} {2}", {"id": "n0", "client": "x"}) == "n0:x {} {2}"
