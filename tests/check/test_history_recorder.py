"""The recorder and the pytest plug-in of harness.testing."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from check_samples import WITH_PLUGIN

from shaketable.checkers.api import NotLinearizableError, Outcome
from shaketable.harness.contracts.errors import DefiniteError
from shaketable.harness.testing.recorder import Recorder

pytest_plugins = ("pytester",)


def test_what_threads_do_is_recorded_and_checked() -> None:
    history, lock, value = Recorder(), threading.Lock(), [0]

    def client(process: int) -> None:
        for n in range(20):
            with history.call(process, "write", 100 * process + n), lock:
                value[0] = 100 * process + n
            with history.call(process, "read") as call, lock:
                call.ok(value[0])

    threads = [threading.Thread(target=client, args=(process,)) for process in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == 320
    verdict = history.assert_linearizable("register")
    assert verdict.counts["operations"] == 160


def test_an_exception_leaves_the_outcome_unknown_and_a_definite_one_makes_it_fail() -> None:
    history = Recorder()
    for error in (TimeoutError, DefiniteError):
        with pytest.raises(error), history.call(0, "write", 1):
            raise error
    with history.call(1, "write", 2) as call:
        call.fail()
    history.call(2, "write", 3)
    kinds = [event.type for event in history.events()]
    assert kinds == ["invoke", "info", "invoke", "fail", "invoke", "fail", "invoke"]
    with pytest.raises(RuntimeError, match="has ended already"):
        call.ok()


def test_a_failed_check_shows_the_part_and_writes_the_page(tmp_path: Path) -> None:
    history = Recorder(page=tmp_path / "pages" / "one.html")
    for process, f, given, answer in ((0, "write", 3, None), (1, "write", 4, None)):
        with history.call(process, f, given):
            assert answer is None
    with history.call(2, "read") as call:
        call.ok(3)
    assert history.check("cas-register").outcome is Outcome.INVALID
    with pytest.raises(NotLinearizableError) as caught:
        history.assert_linearizable("cas-register")
    text, page = caught.value.__notes__
    assert "|-X read 3" in text
    assert "client 2" in text
    assert str(tmp_path) in page
    assert "✗ INVALID" in (tmp_path / "pages" / "one.html").read_text()


class Stale:
    """A register whose reads may miss the newest write."""

    def __init__(self, *, is_sound: bool) -> None:
        self.values, self.is_sound = [0], is_sound

    def work(self, history: Recorder, process: int) -> None:
        """Write, and read: of clients whose turns do not overlap."""
        with history.call(process, "write", process + 1):
            self.values.append(process + 1)
        with history.call(process, "read") as call:
            call.ok(self.values[-1 if self.is_sound else 0])


def by_threads(history: Recorder, register: Stale) -> None:
    for process in range(3):
        thread = threading.Thread(target=register.work, args=(history, process))
        thread.start()
        thread.join()


def by_asyncio(history: Recorder, register: Stale) -> None:
    async def client(process: int) -> None:
        await asyncio.sleep(0)
        register.work(history, process)

    async def clients() -> None:
        for process in range(3):
            await asyncio.create_task(client(process))

    asyncio.run(clients())


def by_trio(history: Recorder, register: Stale) -> None:
    async def client(process: int) -> None:
        await trio.lowlevel.checkpoint()
        register.work(history, process)

    async def clients() -> None:
        for process in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client, process)

    trio.run(clients)


def test_threads_asyncio_and_trio_record_the_same_history() -> None:
    for is_sound in (True, False):
        recorded = []
        for record in (by_threads, by_asyncio, by_trio):
            history = Recorder()
            record(history, Stale(is_sound=is_sound))
            recorded.append(
                [(each.process, each.type, each.f, each.value) for each in history.events()]
            )
            assert history.check("register").outcome is (
                Outcome.VALID if is_sound else Outcome.INVALID
            )
        assert len(recorded[0]) == 12
        assert recorded[0] == recorded[1] == recorded[2]


def test_a_cancelled_call_is_of_unknown_outcome() -> None:
    """Of both kinds of tasks: what was cancelled may have happened."""
    history = Recorder()

    async def of_asyncio() -> None:
        with history.call(0, "write", 1):
            await asyncio.sleep(3600)

    async def until_cancelled() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(of_asyncio(), timeout=0)

    async def of_trio() -> None:
        with trio.move_on_after(0), history.call(1, "write", 2):
            await trio.sleep_forever()

    asyncio.run(until_cancelled())
    trio.run(of_trio)
    ends = [event.type for event in history.events() if event.type != "invoke"]
    assert ends in (["info", "info"], ["info"])  # asyncio may cancel a task before it begins
    assert ends[-1] == "info"


TEST_FILE = """
def test_fine(history_recorder):
    with history_recorder.call(0, "write", 3):
        pass
    with history_recorder.call(1, "read") as call:
        call.ok(3)
    history_recorder.assert_linearizable("register")

def test_wrong(history_recorder):
    with history_recorder.call(0, "write", 3):
        pass
    with history_recorder.call(1, "read") as call:
        call.ok(7)
    history_recorder.assert_linearizable("register")

def test_function(assert_linearizable):
    assert_linearizable([])
"""


def test_the_fixtures_work_in_somebody_elses_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST_FILE)
    result = pytester.runpytest_subprocess(*WITH_PLUGIN, "--shaketable-pages", "pages", timeout=100)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            '>       history_recorder.assert_linearizable("register")',
            "E *NotLinearizableError: INVALID  1 key shows what no order of its *",
            "E       read 7 by process 1 *",
            "E       client 1  |-X read 7--|",
            "*0 operations*",
        ]
    )
    for place in ("harness/testing", "checkers/api", "asserting.py", "recorder.py"):
        assert place not in result.stdout.str(), "a frame of ours is shown"
    pages = sorted(path.name for path in (pytester.path / "pages").iterdir())
    assert len(pages) == 2
    assert any("test_wrong" in page for page in pages)


def test_the_plug_in_is_an_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    plugin = 'shaketable = "shaketable.harness.testing.pytest_plugin"'
    assert f"[project.entry-points.pytest11]\n{plugin}" in text


def test_the_plug_in_imports_nothing_heavy() -> None:
    program = (
        "import sys, pytest, shaketable.harness.testing.pytest_plugin;"
        "print([m for m in ('pyarrow', 'numpy', 'numba', 'pyspark', 'hypothesis',"
        " 'shaketable.checkers')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
