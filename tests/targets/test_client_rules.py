"""Clients in a worker process are checked by the rules of their calls, as simulated ones are."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import Broken, ChecksClients
from shaketable.harness.targets import client_rules
from shaketable.system.client import BrokerGroupClient, ClientParts, RefusedError
from shaketable.system.client.connection import (
    Channels,
    Connection,
    DamagedResponseError,
    OutcomeUnknownError,
)
from shaketable.system.client.pull_consumer import SUBSCRIPTION_FLAG, Message, PullConsumer
from shaketable.system.client.routes import MessageQueue, Route, allocate, parse_address
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import load
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    Command,
    FrameBuffer,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.name_server_requests import BrokerData, QueueData, TopicRoute
from shaketable.system.remoting.requests import (
    MetadataResponse,
    PullMessage,
    PullMessageResponse,
)
from shaketable.system.sim.rules.call_invariants import CallRules, share_of
from shaketable.system.store.message import Message as StoredMessage
from shaketable.system.store.message import encode_message, walk_messages


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that refuses each request for good."""

    async def call(_: Connection, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        return Command(ResponseCode.NO_PERMISSION, remark="no")

    monkeypatch.setattr(Connection, "call", call)


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("target", ["dledger", "async-replication"])
@pytest.mark.parametrize(
    ("bug", "broken"),
    [("refusals-tried-again", ["refusals-are-final"]), (None, [])],
    ids=["planted", "healthy"],
)
def test_a_refusal_that_is_tried_again_is_told(
    target: str, bug: str | None, broken: list[str]
) -> None:
    rules = discovery.get("targets", target)
    assert isinstance(rules, ChecksClients)
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    before = vars(BrokerGroupClient)["send"]

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            address = listener.socket.getsockname()[:2]
            client = parts.group_client({"n0": address}, rng=Random(1))
            for _ in range(2):
                with pytest.raises(RefusedError):
                    await client.send("t", 0, b"")
            client.close()

    with rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert [each.invariant for each in told] == broken
    assert all(each.promise and each.at_ns == 7 for each in told)
    assert vars(BrokerGroupClient)["send"] is before, "the classes are as they were"


@pytest.mark.parametrize("bug", ["stays-with-the-silent", None])
def test_who_cannot_be_reached_was_tried(bug: str | None) -> None:
    """One member is paused and the others are down: asked again is who did not answer."""
    rules = discovery.get("targets", "dledger")
    assert isinstance(rules, ChecksClients)
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()

    async def main() -> None:
        (paused,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        (down,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        addresses = [each.socket.getsockname()[:2] for each in (paused, down, down)]
        await down.aclose()
        async with paused:
            members = dict(zip(("a", "b", "c"), addresses, strict=True))
            client = parts.group_client(members, timeout_s=0.3, rng=Random(1))
            for number in range(6):
                with suppress(OutcomeUnknownError, RefusedError):
                    await client.send("t", 0, b"%d" % number)
            client.close()

    with rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert {each.invariant for each in told} == ({"others-are-asked"} if bug else set())


def test_who_forgets_a_member_may_ask_any_other() -> None:
    """The one that is left to turn to is the one that did not answer."""
    told: list[Broken] = []

    async def main() -> None:
        paused = [await trio.open_tcp_listeners(0, host="127.0.0.1") for _ in range(2)]
        members = dict(zip("ab", (at[0].socket.getsockname()[:2] for at in paused), strict=True))
        client = BrokerGroupClient(members, timeout_s=0.2, rng=Random(1))
        for _ in range(3):
            with suppress(OutcomeUnknownError):
                await client.send("t", 0, b"1")
            other = client._target
            client.forget(other)
            client.learn(other, *members[other])
        client.close()
        for (listener,) in paused:
            await listener.aclose()

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert told == []


async def answer_badly(stream: trio.SocketStream) -> None:
    """Answer each request with a field that is no number."""
    buffer = FrameBuffer()
    while size := await stream.socket.recv_into(buffer.writable()):
        buffer.received(size)
        for frame in buffer.frames():
            opaque = decode_command(frame).opaque
            bad = Command(ResponseCode.SUCCESS, opaque=opaque, flag=1, ext={"queueOffset": "x"})
            await stream.send_all(encode_command(bad))


def test_who_answers_badly_has_answered() -> None:
    told: list[Broken] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = [await trio.open_tcp_listeners(0, host="127.0.0.1") for _ in range(2)]
            for listener in listeners:
                nursery.start_soon(trio.serve_listeners, answer_badly, listener)
            members = {str(n): at[0].socket.getsockname()[:2] for n, at in enumerate(listeners)}
            client = BrokerGroupClient(members, timeout_s=1.0, rng=Random(1))
            for number in range(3):
                with pytest.raises(DamagedResponseError):
                    await client.send("t", 0, b"%d" % number)
            client.close()
            nursery.cancel_scope.cancel()

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert told == []


def test_what_was_done_may_be_asked_for_again_at_once() -> None:
    """A counter sends the same message each time that it adds one."""
    told: list[Violated] = []
    rules = CallRules(told.append)
    command = Command(RequestCode.SEND_MESSAGE_V2, body=b"1")

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listener.socket.getsockname()
        connection = await Connection.open(host, port, 5.0)
        for code, broken in ((ResponseCode.SUCCESS, 0), (ResponseCode.SYSTEM_BUSY, 1)):
            for opaque in range(50):
                command.opaque = opaque
                rules.asking(connection, command)
                rules.answered(connection, command, Command(code, opaque=opaque))
            assert [each.invariant for each in told] == ["clients-pause"] * broken
        connection.close()
        await listener.aclose()

    trio.run(main)


def invariants_of(told: list[Broken]) -> set[str]:
    return {each.invariant for each in told}


@pytest.mark.parametrize("is_own", [True, False])
def test_an_answer_to_another_request_is_told(answering: list[int], *, is_own: bool) -> None:
    told: list[Broken] = []
    answering.append(0 if is_own else 1)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        connection = await Connection.open(*listener.socket.getsockname()[:2], 5.0)
        await connection.call(Command(RequestCode.SEND_MESSAGE_V2), 1.0)
        connection.close()
        await listener.aclose()

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert invariants_of(told) == (set() if is_own else {"answers-fit-their-requests"})


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A broker that answers; its answers' numbers are ahead by the last of this list."""
    ahead: list[int] = []

    async def call(_: Connection, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        command.opaque = 40
        return Command(ResponseCode.SUCCESS, opaque=command.opaque + ahead[-1])

    monkeypatch.setattr(Connection, "call", call)
    return ahead


def stored(offset: int, size: int) -> bytes:
    empty = len(encode_message(StoredMessage(b"t", 0, offset, 0, b"")))
    return encode_message(StoredMessage(b"t", 0, offset, 0, bytes(size - empty)))


def page(offset: int, count: int, end: int, size: int = 1000) -> Command:
    """The answer to a pull: so many messages of a queue that ends at `end`."""
    fields = PullMessageResponse(0, offset + count, 0, end)
    body = b"".join(stored(offset + place, size) for place in range(count))
    return Command(ResponseCode.SUCCESS, ext=fields.to_ext(), body=body)


@pytest.mark.parametrize(
    ("pages", "broken"),
    [
        ([page(0, 32, 40), page(32, 8, 40)], None),
        ([page(0, 1, 40), page(1, 32, 40)], "1 message of 1000 bytes came, though one of 1000"),
        ([page(0, 1, 1), page(1, 32, 40)], None),  # nothing more was there
        ([page(0, 1, 40), page(5, 1, 40)], None),  # the next one was not asked for
        ([page(0, 2, 40, 120_000), page(2, 2, 40, 120_000)], None),
        ([page(0, 1, 40, 120_000), page(1, 2, 40, 120_000)], "1 message of 120000 bytes came"),
        (
            [page(0, 33, 40)],
            "33 messages of 33000 bytes came; up to 32 messages and 262144 bytes may",
        ),
        ([page(0, 1, 40), page(1, 32, 39)], None),  # the topic was deleted, and made anew
    ],
)
@pytest.mark.parametrize("flag", [SUBSCRIPTION_FLAG, 0])
def test_pulls_that_bring_too_little_or_too_much_are_told(
    monkeypatch: pytest.MonkeyPatch, pages: list[Command], broken: str | None, flag: int
) -> None:
    told: list[Broken] = []

    async def call(_: Connection, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        asked = PullMessage.from_ext(command.ext).queue_offset
        return next(each for each in pages if next(walk_messages(each.body)).queue_offset == asked)

    monkeypatch.setattr(Connection, "call", call)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        connection = await Connection.open(*listener.socket.getsockname()[:2], 5.0)
        for each in pages:
            offset = next(walk_messages(each.body)).queue_offset
            pull = PullMessage("g", "t", 0, offset, 32, flag, subscription="*", max_msg_bytes=-1)
            await connection.call(Command(RequestCode.PULL_MESSAGE, ext=pull.to_ext()), 1.0)
        connection.close()
        await listener.aclose()

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    if not flag and broken and broken.startswith("1 message "):
        broken = None  # the group may have asked for some tags alone
    assert invariants_of(told) == ({"pulls-are-filled"} if broken else set())
    if broken:
        assert broken in told[0].finding


@pytest.mark.parametrize("bug", ["route-kept-for-good", None])
@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_route_that_is_not_looked_up_again_is_told(
    bug: str | None, *, is_forgotten: bool
) -> None:
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    asked: list[float] = []

    async def call(_: Channels, address: str, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        asked.append(trio.current_time())
        return Command(ResponseCode.SUCCESS)

    async def main() -> None:
        consumer = parts.pull_consumer("ns:1", group="g")
        await consumer.queues("t")
        await trio.sleep(29.0)
        await consumer.queues("t")
        if is_forgotten:
            consumer.forget("t")
        else:
            await trio.sleep(3.0)
        for _ in range(2):
            await consumer.queues("t")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channels, "call", call)
        with client_rules.checked_clients(told.append, lambda: 7):
            trio.run(main, clock=MockClock(autojump_threshold=0))
    assert invariants_of(told) == ({"routes-are-looked-up"} if bug else set())
    assert len(asked) == (1 if bug else 2)


@pytest.mark.parametrize("bug", ["status-from-cache", None])
def test_a_status_that_was_not_asked_for_is_told(
    monkeypatch: pytest.MonkeyPatch, bug: str | None
) -> None:
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    status = MetadataResponse("n0", "leader", 1, "n0", 0, 0)

    async def call(_: Connection, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        return Command(ResponseCode.SUCCESS, ext=status.to_ext())

    monkeypatch.setattr(Connection, "call", call)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        client = parts.group_client({"n0": listener.socket.getsockname()[:2]}, rng=Random(1))
        for _ in range(2):
            assert (await client.metadata("n0")).role == "leader"
        client.close()
        await listener.aclose()

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert invariants_of(told) == ({"answers-are-asked-for"} if bug else set())


@given(queues=st.integers(0, 20), consumers=st.integers(1, 20))
def test_what_each_client_of_rocketmq_gives_a_consumer_is_what_ours_takes(
    queues: int, consumers: int
) -> None:
    all_queues = [MessageQueue("t", "b", number) for number in range(queues)]
    ids = [f"c{number:02}" for number in range(consumers)]
    shares = [share_of(me, all_queues, ids) for me in ids]
    assert [queue for share in shares for queue in share] == all_queues, "each to one of them"
    assert shares == [list(allocate(all_queues, ids, me)) for me in ids]
    assert share_of("none of them", all_queues, ids) == []


@pytest.mark.parametrize(
    ("bug", "queues"),
    [
        ("overlapping-shares", 3),
        ("own-division-of-queues", 3),
        ("own-division-of-queues", 4),
        (None, 3),
        (None, 1),
    ],
)
def test_shares_that_do_not_add_up_are_told(bug: str | None, queues: int) -> None:
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    all_queues = [MessageQueue("t", "b", number) for number in range(queues)]
    with client_rules.checked_clients(told.append, lambda: 7):
        for me in ("a", "b"):
            member = parts.membership(PullConsumer("127.0.0.1:9", group="g"), me, {"t": "*"}, 1.0)
            member._allocate(all_queues, ("a", "b"))
    is_wrong = bug == "overlapping-shares" or (bug is not None and queues == 3)
    assert invariants_of(told) == ({"shares-add-up"} if is_wrong else set())


async def no_messages(_queue: MessageQueue, _messages: Sequence[Message]) -> None:
    raise AssertionError("there are none")


@pytest.mark.parametrize("bug", ["left-without-a-commit", None])
def test_who_leaves_without_a_commit_is_told(bug: str | None) -> None:
    """No broker is there: the commit fails, but it is tried."""
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    queue = MessageQueue("t", "b", 0)

    async def main() -> None:
        consumer = parts.group_consumer(
            "127.0.0.1:9", group="g", client_id="a", subscriptions={"t": "*"}, handler=no_messages
        )
        reader = consumer.reader_type(
            consumer._source, queue, "*", no_messages, is_ordered=False, wait_s=1.0
        )
        reader._offset, reader._committed = 7, 3
        consumer._readers[queue] = reader
        with trio.move_on_after(0.2):
            await consumer.run()

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert invariants_of(told) == ({"who-leaves-has-committed"} if bug else set())


@pytest.mark.parametrize("bug", ["unlocks-before-commit", None])
@pytest.mark.parametrize("is_handled", [True, False])
def test_who_gives_a_lock_back_without_a_commit_is_told(
    bug: str | None, *, is_handled: bool
) -> None:
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    queue = MessageQueue("t", "b", 0)

    async def main() -> None:
        consumer = parts.group_consumer(
            "127.0.0.1:9", group="g", client_id="a", subscriptions={"t": "*"}, handler=no_messages,
            is_ordered=True,
        )  # fmt: skip
        reader = consumer.reader_type(
            consumer._source, queue, "*", no_messages, is_ordered=True, wait_s=1.0
        )
        consumer._readers[queue] = reader
        reader.stop()
        await reader.run()
        reader._offset, reader._committed = 7, 3 if is_handled else 7
        await consumer._release(queue)

    with client_rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    due = {"unlocked-is-committed"} if bug and is_handled else set()
    assert invariants_of(told) - {"locks-come-first"} == due


@pytest.mark.parametrize("bug", ["noted-while-committing", None])
def test_who_notes_what_was_not_committed_is_told(bug: str | None) -> None:
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    queue = MessageQueue("t", "b", 0)

    class Source(PullConsumer):
        async def committed(self, queue: MessageQueue) -> int:
            await trio.lowlevel.checkpoint()
            return 3

        async def _ask_for(self, *_: object) -> Command:
            await trio.lowlevel.checkpoint()
            reader._offset = 9  # handled while the commit of 7 was under way
            return Command(ResponseCode.SUCCESS)

    async def main() -> None:
        reader._offset = reader._committed = await reader._start_offset()
        await reader.commit()
        for offset in (7, 9):
            reader._offset = offset
            await reader.commit()

    with client_rules.checked_clients(told.append, lambda: 7):
        reader = parts.group_consumer.reader_type(
            Source("127.0.0.1:9", group="g"), queue, "*", no_messages, is_ordered=False, wait_s=1.0
        )
        trio.run(main)
    found = invariants_of(told) - {"answers-are-asked-for"}  # its source asks no broker
    assert found == ({"noted-is-committed"} if bug else set())


@pytest.mark.parametrize("bug", ["order-key-moves", None])
def test_a_key_that_changes_its_queue_is_told(bug: str | None) -> None:
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()

    def route(*names: str) -> Route:
        datas = tuple(BrokerData("c", name, {0: f"{name}:1"}) for name in names)
        return Route("t", TopicRoute(datas, tuple(QueueData(name, 2, 2, 6, 0) for name in names)))

    with client_rules.checked_clients(told.append, lambda: 7):
        producer = parts.producer("127.0.0.1:9")
        for known in (route("a", "b"), route("b"), route("a", "b")):
            chosen = producer._choose(known, "t", "key", None)
            for name in ("a", "b"):
                producer._choose(known, "t", None, name)  # without a key it may go anywhere
        producer._choose(known, "t", "key", chosen.broker_name)
    assert invariants_of(told) == ({"order-keys-keep-their-queue"} if bug else set())


def raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_of_the_clients_own_is_told_and_one_of_their_machine_is_not() -> None:
    told: list[Broken] = []
    own = raised(lambda: parse_address("nowhere"))
    of_machine = raised(lambda: parse_address("nowhere"))
    of_machine = ExceptionGroup("", [OSError(errno.EMFILE, "too many files"), of_machine])
    of_threads = ExceptionGroup("", [RuntimeError("can't start new thread"), own])
    with client_rules.checked_clients(told.append, lambda: 7) as unexpected:
        unexpected("poll", of_machine)
        unexpected("poll", of_threads)
        unexpected("poll", raised(lambda: int("x")))  # the workload's
        assert told == []
        unexpected("poll", own)
    assert invariants_of(told) == {"calls-end-as-promised"}
    assert "poll ended with ValueError" in told[0].finding
