"""The example target: a group of etcd servers, shaken through what a newcomer would write.

Right reads that must be judged valid, reads of whichever node is at hand that must be found stale,
and a clock that its programs do not notice.
"""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import trio
from installed import install, shaketable

from shaketable.harness.contracts.clients import RegisterClient
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Address
from tests.support.volume import whole

PROJECT = Path(__file__).parent.parent.parent / "examples" / "etcd"
LINES_MAX = 150
needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="no etcd here: Debian's package etcd-server has it"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    install(PROJECT, site)
    return site


def run(site: Path, store: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    done = shaketable(
        site, "run", "-w", "register", "--rate", "150", "--steady", "1", "--nemesis-interval", "1",
        "--fault-duration-min", "2", "--fault-duration-max", "3", "--store", store, *arguments,
    )  # fmt: skip
    return done, (store / "latest").resolve()


@needs_etcd
@pytest.mark.e2e
@pytest.mark.spark
def test_linearizable_reads_are_valid_under_kill_pause_and_partition(
    site: Path, tmp_path: Path
) -> None:
    done, stored = run(
        site, tmp_path, "--target", "my-etcd", "--faults", "kill,pause,partition",
        "--nemesis-schedule", "sequence", "--time-limit", "15", "--seed", "etcd",
        "--engine", "local",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    checkers = json.loads((stored / "results.json").read_text())["checkers"]
    assert {name: checker["valid"] for name, checker in checkers.items()} == dict.fromkeys(
        ("linearizable-register", "vacuity", "stats", "run-as-planned"), True
    )
    assert checkers["stats"]["counts"]["ok"] > 300
    for fault in ("kill", "pause", "partition"):
        assert re.search(rf"took effect \(.*{fault} [12]\b", done.stdout), done.stdout


@needs_etcd
@pytest.mark.e2e
@pytest.mark.spark
@whole
def test_serializable_reads_are_found_to_be_stale_and_clocks_untouched(
    site: Path, tmp_path: Path
) -> None:
    done, stored = run(
        site, tmp_path, "--target", "my-etcd-serializable", "--promise", "my-etcd",
        "--faults", "partition,clock", "--nemesis-schedule", "sequence", "--victims", "one",
        "--queues", "3", "--op-timeout", "0.4", "--time-limit", "11", "--seed", "stale",
        "--engine", "local",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    checkers = json.loads((stored / "results.json").read_text())["checkers"]
    verdict = checkers["linearizable-register"]
    assert verdict["valid"] is False
    assert checkers["vacuity"]["data"] == {"without_effect": ["clock"]}, (
        "its programs do not notice"
    )
    assert "does not notice" in " ".join(done.stdout.split())
    page = (stored / "report.html").read_text()
    for finding in verdict["findings"]:
        assert finding["kind"] == "not-linearizable"
        assert html.escape(finding["message"]) in page
    told = " ".join(finding["message"] for finding in verdict["findings"])
    assert " is stale: " in told, told
    judged = shaketable(site, "analyze", stored, "--engine", "local")
    assert judged.returncode == 1, judged.stdout + judged.stderr


@needs_etcd
@pytest.mark.e2e
def test_what_it_synced_survives_power_losses(site: Path, tmp_path: Path) -> None:
    done, _ = run(
        site, tmp_path, "--target", "my-etcd", "--faults", "kill,power", "--time-limit", "12",
        "--seed", "etcd", "--engine", "local",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"took effect \(.*power [1-9]", done.stdout), done.stdout


# ---- without etcd ------------------------------------------------------------------------


@pytest.fixture
def etcd_target() -> ModuleType:
    spec = importlib.util.spec_from_file_location("etcd_target", PROJECT / "etcd_target.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answering(
    module: ModuleType, answer: Callable[[httpx.Request], httpx.Response], **reads: bool
) -> RegisterClient:
    """A client of the target to whom that function answers."""
    client = module.EtcdClient({"n0": Address("127.0.0.1", 1)}, 1.0, reads)
    client._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    assert isinstance(client, RegisterClient)
    return client


def test_the_example_is_short() -> None:
    assert len((PROJECT / "etcd_target.py").read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("etcdserver: no leader", DefiniteError),
        ("etcdserver: too many requests", DefiniteError),
        ("etcdserver: request timed out", IndefiniteError),
        ("etcdserver: request timed out, possibly due to previous leader failure", IndefiniteError),
        ("etcdserver: leader changed", IndefiniteError),
        ("etcdserver: not leader", IndefiniteError),
        ("etcdserver: server stopped", IndefiniteError),
        ("context deadline exceeded", IndefiniteError),
        ("transport is closing", IndefiniteError),
    ],
)
def test_a_write_failed_for_certain_only_where_nothing_was_proposed(
    etcd_target: ModuleType, told: str, kind: type[Exception]
) -> None:
    async def main() -> None:
        client = answering(etcd_target, lambda _: httpx.Response(503, json={"error": told}))
        with pytest.raises(kind, match=told):
            await client.put("r/0", 7)
        with pytest.raises(kind):
            await client.swap("r/0", 7, 8)
        with pytest.raises(DefiniteError):  # a read changes nothing
            await client.get("r/0")

    trio.run(main)


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (httpx.ConnectError("refused"), DefiniteError),
        (httpx.ReadTimeout("slow"), IndefiniteError),
        (httpx.ReadError("reset"), IndefiniteError),
        (httpx.RemoteProtocolError("half an answer"), IndefiniteError),
    ],
)
def test_a_connection_that_was_never_made_carried_nothing(
    etcd_target: ModuleType, failed: Exception, kind: type[Exception]
) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise failed

    async def main() -> None:
        with pytest.raises(kind):
            await answering(etcd_target, fail).put("r/0", 7)

    trio.run(main)


def test_what_is_asked_and_what_an_answer_means(etcd_target: ModuleType) -> None:
    asked: list[tuple[str, dict]] = []
    answers = [
        {"kvs": [{"value": "Nw=="}]},
        {},
        {"succeeded": True},
        {},
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=answers[len(asked) - 1])

    async def main() -> None:
        client = answering(etcd_target, answer, serializable=True)
        assert await client.get("a") == 7
        assert await client.get("a") is None
        assert await client.swap("a", None, 8) is True
        assert await client.swap("a", 7, 8) is False

    trio.run(main)
    assert asked[0] == ("/v3/kv/range", {"key": "YQ==", "serializable": True})
    assert [body["compare"][0] for _, body in asked[2:]] == [
        {"key": "YQ==", "target": "VERSION", "version": "0"},
        {"key": "YQ==", "target": "VALUE", "value": "Nw=="},
    ]
