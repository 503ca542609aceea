"""Plug-ins: built-ins and external ones are found; broken ones are told in one line."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.workloads import log, message_queue

WORKLOAD = '''
"""A workload from elsewhere.

More text.
"""


class Other:
    name = "other"
    checkers = ()

    def configured(self, options): ...
    def operations(self, seed, client, clients): ...
    def final_operations(self, client, clients): ...
    async def invoke(self, operation, offset, client): ...
    def choose_offset(self, operation, end_seen): ...
    def end_shown(self, operation, output, offset): ...


OTHER = Other()
'''


@pytest.fixture(autouse=True)
def _fresh():
    discovery.clear_caches()
    yield
    discovery.clear_caches()
    sys.modules.pop("other_workload", None)


def install(
    site: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: str = "workloads"
) -> None:
    info = site / "other_workload-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-workload\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[shaketable.{kind}]\nother = other_workload:OTHER\n")
    (site / "other_workload.py").write_text(source)
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()


def test_built_ins_are_found_by_their_package() -> None:
    built_in = discovery.find("workloads")
    assert sorted(built_in) == [
        "bank", "combined", "combined-queues", "counter", "everything-clients",
        "list-append", "log", "offsets",
        "queue", "queue-batches",
        "queue-delays", "queue-held", "queue-keys", "queue-offsets",
        "queue-operators", "queue-order-keys", "queue-ordered", "queue-push",
        "queue-push-ordered", "read-write-register", "register", "rw-register", "set", "work-queue",
    ]  # fmt: skip
    assert built_in["queue"] is message_queue.PLUGINS[0]
    assert discovery.get("workloads", "log") is log.PLUGIN
    assert discovery.summary(log.PLUGIN) == (
        "Appends of unique values and reads across several queues."
    )


def test_external_plug_ins_are_found_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, WORKLOAD)
    assert sorted(discovery.find("workloads")) == [
        "bank", "combined", "combined-queues", "counter", "everything-clients",
        "list-append", "log", "offsets",
        "other", "queue", "queue-batches",
        "queue-delays", "queue-held", "queue-keys", "queue-offsets",
        "queue-operators", "queue-order-keys", "queue-ordered", "queue-push",
        "queue-push-ordered", "read-write-register", "register", "rw-register", "set", "work-queue",
    ]  # fmt: skip
    other = discovery.get("workloads", "other")
    assert other.name == "other"
    assert discovery.summary(other) == "A workload from elsewhere."


def test_unknown_names_are_told_with_the_nearest_and_all() -> None:
    with pytest.raises(UsageError) as told:
        discovery.get("workloads", "logg")
    there_are = ", ".join(sorted(discovery.find("workloads")))
    assert (
        str(told.value) == f"unknown workload 'logg'; did you mean 'log'? (there are: {there_are})"
    )
    for name in ("", "../x", "a.b", "__init__", "campaigns"):
        with pytest.raises(UsageError, match="unknown workload"):
            discovery.get("workloads", name)


def test_of_very_many_names_only_the_nearest_is_told() -> None:
    names = [f"bug-{number}" for number in range(70)]
    assert unknown_name("mutant", "bug7", names) == (
        "unknown mutant 'bug7'; did you mean 'bug-7'? (there are 70: see the command list)"
    )
    assert unknown_name("mutant", "xyz", names) == (
        "unknown mutant 'xyz' (there are 70: see the command list)"
    )


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import nowhere_at_all", "cannot load the plug-in other = other_workload:OTHER: "),
        ("OTHER = 1 / 0", "cannot load .*: ZeroDivisionError: division by zero"),
        ("", "cannot load .*: AttributeError: "),
        ("syntax error", "cannot load .*: SyntaxError: "),
        ("import sys; sys.exit(0)", "cannot load .*: SystemExit: 0"),
        (WORKLOAD.replace("def end_shown", "def elsewhere"), "is no Workload: has no end_shown"),
        (WORKLOAD.replace("OTHER = Other()", "OTHER = 3"), "is no Workload: has no name, checkers"),
        (
            WORKLOAD.replace("OTHER = Other()", "OTHER = Other()\nOTHER.invoke = None"),
            "is no Workload: invoke is no method",
        ),
        (WORKLOAD.replace("= Other()", "= Other"), "is no Workload: it is a class"),
        (WORKLOAD.replace('"other"', "None"), "is no Workload: its name is None"),
        (
            WORKLOAD.replace("checkers = ()", "checkers = property(lambda self: 1 / 0)"),
            "is no Workload: its checkers cannot be looked at: ZeroDivisionError: division",
        ),
        (
            WORKLOAD.replace("checkers = ()", "checkers = (type('X', (), {'__repr__': 3})(),)"),
            r"is no Workload: its checkers are <tuple that cannot be shown>, no names",
        ),
        (
            WORKLOAD.replace("checkers = ()", "checkers = property(lambda self: sys.exit(3))")
            + "import sys\n",
            "is no Workload: its checkers cannot be looked at: SystemExit: 3",
        ),
        ("import asyncio; raise asyncio.CancelledError", "cannot load .*: CancelledError: "),
        (WORKLOAD.replace('"other"', '"log"'), "workloads: two plug-ins are named 'log'"),
    ],
)
def test_a_broken_plug_in_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: str
) -> None:
    install(tmp_path, monkeypatch, source)
    with pytest.raises(HarnessError, match=line) as told:
        discovery.find("workloads")
    assert "other_workload" in str(told.value)
    assert "\n" not in str(told.value)


FAULT = '''
class Other:
    """A fault from elsewhere."""

    name = "other"
    {extra}

    def configured(self, options): ...
    def unavailable(self, target, nodes): ...
    def plan(self, rng, nodes, turn): ...
    def aim(self, plan, nodes, leader): ...
    def describe(self, plan): ...
    async def apply(self, plan, world): ...
    async def probe(self, plan, undo, world): ...
    async def undo(self, undo, world): ...


OTHER = Other()
'''


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("", None),
        ('needs = {"kill"}; family = "process"', None),
        ('needs = {"kil"}', "it needs an unknown word 'kil'; did you mean 'kill'?"),
        ("needs = 3", "its needs are 3, no set of words"),
        ('needs = "kill"', "its needs are 'kill', no set of words"),
        ("needs = {3}", "its needs are {3}, no set of words"),
        ("family = 3", "it is of an unknown family '3'"),
        ('family = "proces"', "it is of an unknown family 'proces'; did you mean 'process'?"),
    ],
)
def test_a_fault_says_of_itself_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, told: str | None
) -> None:
    install(tmp_path, monkeypatch, FAULT.format(extra=extra), kind="faults")
    if told is None:
        assert "other" in discovery.find("faults")
        return
    with pytest.raises(HarnessError, match=re.escape(told)):
        discovery.find("faults")


def test_getting_one_imports_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "import nowhere_at_all")
    assert discovery.get("workloads", "log") is log.PLUGIN


def test_getting_one_refuses_two_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, WORKLOAD.replace('"other"', '"log"'))
    entries = tmp_path / "other_workload-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[shaketable.workloads]\nlog = other_workload:OTHER\n")
    told = "workloads: two plug-ins are named 'log': the second is entry point log = other_workload"
    with pytest.raises(HarnessError, match=told):
        discovery.get("workloads", "log")
    assert discovery.get("workloads", "set").name == "set"


def test_getting_one_of_elsewhere_refuses_two_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, WORKLOAD + "AGAIN = Other()\n")
    info = tmp_path / "second-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: second\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shaketable.workloads]\nother = other_workload:AGAIN\n")
    with pytest.raises(HarnessError, match="workloads: two plug-ins are named 'other': the second"):
        discovery.get("workloads", "other")


def test_a_summary_that_raises_is_told_as_one() -> None:
    class Rude:
        @property
        def summary(self) -> str:
            raise ValueError("do not look")

    assert discovery.summary(Rude()) == "<Rude that cannot be shown>"
