"""Calls end in time and as they may, and leave no socket open: who breaks that is told of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.runtime.simulated.run import new_group
from shaketable.harness.targets.simulated_group import BrokerGroup
from shaketable.system.client.connection import Channels, Connection, NameService, RefusedError
from shaketable.system.invariants.violated import Violated
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command, encode_command
from shaketable.system.sim.rules.call_invariants import watched_calls
from shaketable.system.sim.rules.client_history import (
    LATE_MAX_MS,
    SYSTEM,
    check_all_closed,
    check_expected,
    check_in_time,
)


def test_a_call_may_take_its_timeout_and_a_step_more() -> None:
    check_in_time("a pull", 1000 + LATE_MAX_MS, 1000)
    with pytest.raises(Violated, match="a pull took 1051 ms, its timeout is 1000 ms"):
        check_in_time("a pull", 1001 + LATE_MAX_MS, 1000)


def test_who_left_and_has_nothing_open_is_left_alone() -> None:
    check_all_closed("clients", {})
    with pytest.raises(Violated, match="1 to n0:10911, 2 to ns0:9876"):
        check_all_closed("clients", {"ns0:9876": 2, "n0:10911": 1})


@pytest.mark.parametrize("took_s", [0.5, 2.0])
def test_who_waits_too_long_for_a_connection_is_told_of(
    monkeypatch: pytest.MonkeyPatch, took_s: float
) -> None:
    async def open_slowly(kind: type[Connection], *_: object) -> Connection:
        await trio.sleep(took_s)
        return object.__new__(kind)

    monkeypatch.setattr(Connection, "open", classmethod(open_slowly))
    found: list[Violated] = []
    with watched_calls(found.append):
        watched = vars(Connection)["call"]
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(Connection.open, "h", 1, 3.0, clock=clock)
    assert [each.invariant for each in found] == ["calls-end-in-time"] * (took_s > 1)
    assert vars(Connection)["call"] is not watched, "it is restored"


class Down(Channels):
    """Reaches no name server."""

    async def call(self, address: str, *_: object) -> Command:
        await trio.lowlevel.checkpoint()
        raise RefusedError(-1, f"{address} cannot be reached")


@pytest.mark.parametrize("is_hasty", [False, True])
def test_who_gives_up_after_one_name_server_is_told_of(
    monkeypatch: pytest.MonkeyPatch, is_hasty: bool
) -> None:
    once = NameService.ask

    async def ask_one(self: NameService, code: RequestCode, wait_s: float, **ext: str) -> Command:
        address = self._addresses[0]
        return await self._channels.call(address, Command(code, ext=dict(ext)), wait_s)

    monkeypatch.setattr(Channels, "call", Down.call)
    monkeypatch.setattr(NameService, "ask", ask_one if is_hasty else once)
    names = NameService(Channels(), "a:1;b:2")
    found: list[Violated] = []
    with watched_calls(found.append), pytest.raises(RefusedError):
        trio.run(names.route, "t")
    assert [each.invariant for each in found] == ["every-name-server-is-asked"] * is_hasty


NO_COMMAND = cast(Command, None)


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_only_what_the_clients_own_code_raised_is_told_of() -> None:
    ours = raised_by(lambda: encode_command(NO_COMMAND))
    check_expected("send", raised_by(lambda: {}["a workload's own"]))
    place = r"\(system/remoting/command.py, line \d+\)"
    with pytest.raises(Violated, match=rf"send ended with \w+: .* {place}"):
        check_expected("send", ours)
    told = "a consumer had ended by itself, which unsubscribe showed: "
    with pytest.raises(Violated, match=told):
        check_expected("unsubscribe", ExceptionGroup("tasks", [ExceptionGroup("a task", [ours])]))
    noted = ExceptionGroup("tasks", [ours])
    noted.add_note("it had ended 2.0 s before")
    with pytest.raises(Violated, match=rf"{place}; it had ended 2.0 s before"):
        check_expected("unsubscribe", noted)


def raised_through(outer: Path, inner: Path, call: str) -> Exception:
    """An error of `call` in a function of one file that a function of another one called."""
    names: dict[str, object] = {}
    for path, name, text in ((inner, "inner", call), (outer, "outer", "inner()")):
        exec(compile(f"import json\ndef {name}(): {text}", str(path), "exec"), names)
    outer_function = names["outer"]
    assert callable(outer_function)
    return raised_by(outer_function)


@pytest.mark.parametrize(
    "call", ["1 / 0", "json.loads('x')"]
)  # here, and in a library that was asked
def test_who_asked_a_library_answers_for_its_error(call: str) -> None:
    ours, theirs = SYSTEM / "client" / "some.py", SYSTEM.parent / "workloads" / "some.py"
    with pytest.raises(Violated, match=r"\(system/client/some.py, line 2\)"):
        check_expected("send", raised_through(theirs, ours, call))
    check_expected("send", raised_through(ours, theirs, call))  # of a handler that we call


def test_an_error_that_nobody_foresaw_is_broken_once() -> None:
    group = new_group(Campaign(world="sim", target="multi-master", workload="queue"))
    assert isinstance(group, BrokerGroup)
    group.operation_raised("send", raised_by(lambda: {}["a workload's own"]))
    assert group.broken == []
    group.operation_raised("send", raised_by(lambda: encode_command(NO_COMMAND)))
    assert [each.invariant for each in group.broken] == ["calls-end-as-promised"]


def in_world(group: BrokerGroup, leaves: bool) -> None:
    """Connect a client of a simulated group, and have it leave, or only go away."""

    async def main() -> None:
        await trio.sleep(0.5)
        group.run_as_client()
        channels, at = Channels(), group.addresses["ns0"]
        assert isinstance(at, Address)
        await channels._connection(str(at), 1.0)
        with pytest.raises(RefusedError):  # nobody listens there
            await channels._connection(f"{at.host}:1", 0.1)
        if leaves:
            channels.close()
        group.clients_closed()

    group.run(main)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_connection_that_a_client_forgot_is_counted(leaves: bool) -> None:
    group = new_group(Campaign(world="sim", target="multi-master", workload="queue"))
    assert isinstance(group, BrokerGroup)
    in_world(group, leaves)
    found = [(each.invariant, each.finding) for each in group.broken]
    forgotten = [("clients-leave-nothing-open", "sockets that were not closed: 1 to ns0:9876")]
    assert found == ([] if leaves else forgotten)


def test_an_operation_that_outlasts_its_timeout_is_told_of_once() -> None:
    group = new_group(Campaign(world="sim", target="multi-master", workload="queue"))
    assert isinstance(group, BrokerGroup)
    group.operation_ended("send", 5.0, 5.0)
    group.operation_ended("unsubscribe", 6.0, 5.0)  # it asks one broker after the other
    assert group.broken == []
    group.operation_ended("send", 6.0, 5.0)
    group.operation_ended("send", 7.0, 5.0)
    assert [each.invariant for each in group.broken] == ["calls-end-in-time"]
