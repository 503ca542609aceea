"""Each planted bug of the client: what it gets wrong, and that without it nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import pytest
import trio
from planted import HEALTHY, Mutant, with_and_without

from shaketable.system.client import (
    ConsumeError,
    GroupMembership,
    Metadata,
    OutcomeUnknownError,
    PullConsumer,
    RefusedError,
)
from shaketable.system.client.connection import Connection
from shaketable.system.client.pull_consumer import Pulled
from shaketable.system.client.routes import MessageQueue, Route
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    RESPONSE_FLAG,
    Command,
    FrameBuffer,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.name_server_requests import (
    BrokerData,
    QueueData,
    TopicRoute,
    encode_route,
)
from shaketable.system.remoting.requests import SendMessageResponse
from shaketable.system.store.message import Message

QUEUE = MessageQueue("t", "b", 0)


def connections_of(mutant: Mutant) -> list[type[Connection]]:
    """The connections of every kind of client."""
    parts = mutant.client
    return [
        parts.group_client.connection_type,
        parts.producer.channels_type.connection_type,
        parts.pull_consumer.channels_type.connection_type,
    ]


Serve = Callable[[Connection, trio.SocketStream], object]


async def connected(connection_type: type[Connection]) -> tuple[Connection, trio.SocketStream]:
    """A connection, and its other end."""
    near, far = trio.socket.socketpair()
    connection = connection_type(TcpLike(near))
    trio.lowlevel.spawn_system_task(connection._read)
    return connection, trio.SocketStream(far)


class TcpLike:
    """A stream of which the socket takes options of TCP."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = NoOptions(sock)


class NoOptions:
    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock

    def setsockopt(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@with_and_without("timeout-is-refusal")
def test_silence_is_no_refusal(mutant: Mutant) -> None:
    error = OutcomeUnknownError if mutant is HEALTHY else RefusedError

    async def main() -> None:
        for connection_type in connections_of(mutant):
            connection, far = await connected(connection_type)
            with pytest.raises(error):
                await connection.call(Command(RequestCode.HEART_BEAT), 0.02)
            connection.close()
            await far.aclose()

    trio.run(main)


@with_and_without("answers-by-arrival")
def test_an_answer_goes_to_who_asked(mutant: Mutant) -> None:
    async def main() -> None:
        for connection_type in connections_of(mutant):
            connection, far = await connected(connection_type)
            got: list[bytes] = []

            async def ask(name: bytes, to: Connection = connection, into: list = got) -> None:
                answer = await to.call(Command(RequestCode.HEART_BEAT, body=name), 5.0)
                into.append(name + bytes(answer.body))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, b"a")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, b"b")
                for request in reversed(await requests_of(far, 2)):
                    answer = Command(0, request.opaque, RESPONSE_FLAG, body=bytes(request.body))
                    await far.send_all(encode_command(answer))
            assert sorted(got) == ([b"aa", b"bb"] if mutant is HEALTHY else [b"ab", b"ba"])
            connection.close()
            await far.aclose()

    trio.run(main)


async def requests_of(stream: trio.SocketStream, count: int) -> list[Command]:
    """Read so many requests."""
    buffer, found = FrameBuffer(), []
    while len(found) < count:
        buffer.received(await stream.socket.recv_into(buffer.writable()))
        for frame in buffer.frames():
            command = decode_command(frame)
            command.body = bytes(command.body)
            found.append(command)
    return found


# ---- producers --------------------------------------------------------------------------------


def route_to(address: str) -> TopicRoute:
    return TopicRoute((BrokerData("c", "b", {0: address}),), (QueueData("b", 4, 4, 6, 0),))


class Channels:
    """Answers with what it was told to, one after the other; None: nobody knows."""

    def __init__(self, answers: Sequence[Command | None]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def call(self, _address: str, _command: Command, _timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        answer = self.answers.pop(0)
        if answer is None:
            raise OutcomeUnknownError("no answer")
        return answer

    def close(self) -> None:
        pass


class Names:
    """Knows one route."""

    async def route(self, topic: str, _timeout_s: float) -> Route:
        await trio.lowlevel.checkpoint()
        return Route(topic, route_to("127.0.0.1:1"))

    def forget(self, topic: str) -> None:
        pass


def stored(code: ResponseCode = ResponseCode.SUCCESS) -> Command:
    ext = SendMessageResponse(msg_id="id", queue_id=0, queue_offset=3).to_ext()
    return Command(code, flag=RESPONSE_FLAG, ext=ext)


def producer_with(mutant: Mutant, channels: Channels):  # type: ignore[no-untyped-def]
    producer = mutant.client.producer("127.0.0.1:9", rng=Random(0))
    producer._channels, producer._names = channels, Names()  # type: ignore[assignment]
    return producer


@with_and_without("sends-again-when-unknown")
def test_what_may_be_stored_is_not_sent_again(mutant: Mutant) -> None:
    channels = Channels([None, stored(), stored()])

    async def main() -> None:
        with suppress(OutcomeUnknownError):
            await producer_with(mutant, channels).send("t", b"x", queue=QUEUE)

    trio.run(main)
    assert channels.asked == (1 if mutant is HEALTHY else 2)


@with_and_without("sends-again-when-unknown")
def test_nor_by_the_client_of_a_group(mutant: Mutant) -> None:
    channels = Channels([None, stored(), stored()])

    class OneConnection:
        is_open = True

        async def call(self, command: Command, timeout_s: float) -> Command:
            return await channels.call("", command, timeout_s)

    async def main() -> None:
        client = mutant.client.group_client({"n0": ("h", 1)}, rng=Random(0))
        client._connections["n0"] = OneConnection()  # type: ignore[assignment]
        with suppress(OutcomeUnknownError):
            await client.send("t", 0, b"x")

    trio.run(main)
    assert channels.asked == (1 if mutant is HEALTHY else 2)


@with_and_without("any-stored-is-ok")
def test_a_message_that_no_slave_has_is_not_reported_as_safe(mutant: Mutant) -> None:
    async def main() -> str:
        channels = Channels([stored(ResponseCode.FLUSH_SLAVE_TIMEOUT)])
        return (await producer_with(mutant, channels).send("t", b"x", queue=QUEUE)).status

    status = trio.run(main)
    assert status == ("FLUSH_SLAVE_TIMEOUT" if mutant is HEALTHY else "SEND_OK")


@with_and_without("route-kept-for-good")
def test_a_route_that_failed_is_asked_for_again(mutant: Mutant) -> None:
    async def main() -> list[str | None]:
        bodies = [encode_route(route_to(f"127.0.0.1:{n}"), is_standard=True) for n in (1, 2)]
        found = []
        for part in (mutant.client.producer, mutant.client.pull_consumer):
            answers = [Command(0, flag=RESPONSE_FLAG, body=body) for body in bodies]
            names = part.names_type(Channels(answers), "127.0.0.1:9")  # type: ignore[arg-type]
            await names.route("t")
            names.forget("t")
            found.append((await names.route("t")).master("b"))
        return found

    assert trio.run(main) == ["127.0.0.1:2" if mutant is HEALTHY else "127.0.0.1:1"] * 2


# ---- consumers --------------------------------------------------------------------------------


class Source(PullConsumer):
    """A broker that is played: three queues, two consumers, and endless messages."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:9", group="g")
        self.log: list[str] = []
        self.pulled: list[int] = []

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(MessageQueue(topic, "b", number) for number in range(3))

    async def brokers(self, _topic: str) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return ("127.0.0.1:1",)

    async def ask_broker(self, *_: object) -> Command:
        await trio.lowlevel.checkpoint()
        return Command(ResponseCode.SUCCESS, body=b'{"consumerIdList":["a","b"]}')

    async def ask_master(self, _queue: MessageQueue, command: Command) -> Command:
        await trio.lowlevel.checkpoint()
        self.log.append(RequestCode(command.code).name)
        return Command(ResponseCode.SUCCESS, body=b'{"lockOKMQSet":[]}')

    async def committed(self, _queue: MessageQueue) -> int | None:
        await trio.lowlevel.checkpoint()
        return 0

    async def commit(self, _queue: MessageQueue, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        self.log.append(f"commit {offset}")

    async def pull(self, _queue: MessageQueue, offset: int, **_: object) -> Pulled:
        await trio.lowlevel.checkpoint()
        self.pulled.append(offset)
        message = Message(b"t", 0, offset, 0, b"x")
        return Pulled((message,), "FOUND", offset + 1, 0, offset + 1)


@with_and_without("own-division-of-queues")
def test_every_queue_belongs_to_somebody(mutant: Mutant) -> None:
    async def main() -> set[int]:
        found: set[int] = set()
        for client_id in ("a", "b"):
            membership: GroupMembership = mutant.client.membership(
                Source(), client_id, {"t": "*"}, 1.0
            )
            found |= {queue.queue_id for queue in await membership.assignment("t") or ()}
        return found

    assert trio.run(main) == ({0, 1, 2} if mutant is HEALTHY else {0, 1})


class Gone(Source):
    """A broker that cannot be reached."""

    async def ask_broker(self, *_: object) -> Command:
        await trio.lowlevel.checkpoint()
        raise RefusedError(-1, "nobody listens there")


class Listing(Source):
    """Keeps the codes of what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int] = []

    async def ask_broker(self, *asked: object) -> Command:
        await trio.lowlevel.checkpoint()
        self.codes += [each.code for each in asked if isinstance(each, Command)]
        return Command(ResponseCode.SUCCESS)


@with_and_without("left-without-word")
def test_who_leaves_says_so(mutant: Mutant) -> None:
    source = Listing()
    membership: GroupMembership = mutant.client.membership(source, "a", {"t": "*"}, 1.0)
    assert trio.run(membership.leave) == ("127.0.0.1:1",)
    assert source.codes == ([RequestCode.UNREGISTER_CLIENT] if mutant is HEALTHY else [])


@with_and_without("reads-without-lock")
def test_only_a_lock_that_was_granted_is_held(mutant: Mutant) -> None:
    consumer = mutant.client.group_consumer(
        "127.0.0.1:1", group="g", client_id="a", subscriptions={"t": "*"}, handler=nothing,
        is_ordered=True,
    )  # fmt: skip

    async def refused(*_: object) -> Command:
        await trio.lowlevel.checkpoint()
        return Command(ResponseCode.SUCCESS, body=b'{"lockOKMQSet":[]}')

    consumer._ask_locks = refused  # type: ignore[method-assign]
    held = trio.run(consumer._lock, (QUEUE,))
    assert held == (frozenset() if mutant is HEALTHY else {QUEUE})


@with_and_without("refusals-tried-again")
def test_what_is_refused_for_good_is_asked_for_once(mutant: Mutant) -> None:
    asked: list[int] = []

    class Refuses(mutant.client.group_client):  # type: ignore[name-defined, misc]
        async def _connection(self, member: str, timeout_s: float) -> Connection:
            await trio.lowlevel.checkpoint()
            asked.append(len(member))
            raise RefusedError(ResponseCode.NO_PERMISSION, "no")

    client = Refuses({"n0": ("127.0.0.1", 1)}, rng=Random(1))

    async def ask() -> None:
        with pytest.raises(RefusedError):
            await client.send("t", 0, b"")

    trio.run(ask)
    assert len(asked) == (1 if mutant is HEALTHY else 2)


@with_and_without("stays-with-the-silent")
def test_after_no_answer_another_member_is_asked(mutant: Mutant) -> None:
    asked: list[str] = []
    ends: list[trio.socket.SocketType] = []

    class Silent(mutant.client.group_client):  # type: ignore[name-defined, misc]
        async def _connection(self, member: str, timeout_s: float) -> Connection:
            await trio.lowlevel.checkpoint()
            asked.append(member)
            if member not in self._connections:
                near, far = trio.socket.socketpair()
                ends.append(far)
                self._connections[member] = Connection(TcpLike(near))  # type: ignore[arg-type]
            raise OutcomeUnknownError("no answer")

    client = Silent({"n0": ("127.0.0.1", 1), "n1": ("127.0.0.1", 2)}, rng=Random(1))

    async def ask() -> None:
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await client.send("t", 0, b"")
        client.close()
        for far in ends:
            far.close()

    trio.run(ask)
    assert (asked[0] != asked[1]) == (mutant is HEALTHY)


@with_and_without("status-from-cache")
def test_a_status_is_asked_for_each_time(mutant: Mutant) -> None:
    asked: list[str] = []

    class Counts(mutant.client.group_client):  # type: ignore[name-defined, misc]
        async def _at(self, member: str, *_: object) -> Metadata:
            await trio.lowlevel.checkpoint()
            asked.append(member)
            return Metadata(member, "leader", 1, member, 0, 0)

    client = Counts({"n0": ("127.0.0.1", 1)}, rng=Random(1))

    async def ask() -> None:
        for _ in range(2):
            await client.metadata("n0")

    trio.run(ask)
    assert len(asked) == (2 if mutant is HEALTHY else 1)


@with_and_without("consumer-ends-with-broker")
def test_a_broker_that_is_gone_ends_no_consumer(mutant: Mutant) -> None:
    membership: GroupMembership = mutant.client.membership(Gone(), "a", {"t": "*"}, 1.0)

    async def taken() -> int | str:
        try:
            return await membership.heartbeat()
        except RefusedError:
            return "ended"

    assert trio.run(taken) == (0 if mutant is HEALTHY else "ended")


async def nothing(_queue: MessageQueue, _messages: Sequence[Message]) -> None:
    await trio.lowlevel.checkpoint()


@with_and_without("committed-before-handled")
def test_what_is_being_handled_is_not_committed(mutant: Mutant) -> None:
    source = Source()

    async def main() -> None:
        at_work = trio.Event()

        async def handler(_queue: MessageQueue, _messages: Sequence[Message]) -> None:
            at_work.set()
            await trio.sleep_forever()

        reader = mutant.client.group_consumer.reader_type(
            source, QUEUE, "*", handler, is_ordered=False, wait_s=1.0
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            await at_work.wait()
            await reader.commit()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert source.log == ([] if mutant is HEALTHY else ["commit 1"])


@with_and_without("unlocks-before-commit")
def test_a_lock_is_given_back_behind_the_last_commit(mutant: Mutant) -> None:
    source = Source()

    async def main() -> None:
        consumer = mutant.client.group_consumer(
            "127.0.0.1:9",
            group="g",
            client_id="a",
            subscriptions={"t": "*"},
            handler=nothing,
            is_ordered=True,
        )
        consumer._source = source
        reader = consumer.reader_type(source, QUEUE, "*", nothing, is_ordered=True, wait_s=1.0)
        reader._offset = 7
        consumer._readers[QUEUE] = reader
        reader.ended.set()
        await consumer._release(QUEUE)

    trio.run(main)
    first = source.log[0]
    assert first == ("commit 7" if mutant is HEALTHY else "UNLOCK_BATCH_MQ")


@with_and_without("sent-back-nowhere")
def test_what_a_handler_failed_at_is_sent_back(mutant: Mutant) -> None:
    source = Source()

    async def fails(_queue: MessageQueue, _messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()
        raise ConsumeError

    reader = mutant.client.group_consumer.reader_type(
        source, QUEUE, "*", fails, is_ordered=False, wait_s=1.0
    )
    assert trio.run(reader._consume, [Message(b"t", 0, 0, 0, b"x")]), "it goes on"
    assert source.log == (["CONSUMER_SEND_MSG_BACK"] if mutant is HEALTHY else [])


@with_and_without("overlapping-shares")
def test_no_queue_belongs_to_two(mutant: Mutant) -> None:
    async def main() -> list[int]:
        found: list[int] = []
        for client_id in ("a", "b"):
            membership = mutant.client.membership(Source(), client_id, {"t": "*"}, 1.0)
            found += [queue.queue_id for queue in await membership.assignment("t") or ()]
        return found

    assert trio.run(main) == ([0, 1, 2] if mutant is HEALTHY else [0, 1, 2, 2])


@with_and_without("left-without-a-commit")
def test_who_leaves_commits_before(mutant: Mutant) -> None:
    source = Source()

    async def main() -> None:
        consumer = mutant.client.group_consumer(
            "127.0.0.1:9", group="g", client_id="a", subscriptions={"t": "*"}, handler=nothing
        )
        consumer._source = source
        consumer._membership = mutant.client.membership(source, "a", {"t": "*"}, 1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            while not any(source.pulled):  # a pull beyond offset 0: the first message was consumed
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    trio.run(main)
    commits = [line for line in source.log if line.startswith("commit")]
    assert bool(commits) == (mutant is HEALTHY)


@with_and_without("noted-while-committing")
def test_what_is_handled_meanwhile_is_not_committed(mutant: Mutant) -> None:
    class Slow(Source):
        async def commit(self, queue: MessageQueue, offset: int) -> None:
            await super().commit(queue, offset)
            reader._offset = 9

    source = Slow()
    reader = mutant.client.group_consumer.reader_type(
        source, QUEUE, "*", nothing, is_ordered=False, wait_s=1.0
    )
    reader._offset = 7
    for _ in range(2):
        trio.run(reader.commit)
    assert source.log == (["commit 7", "commit 9"] if mutant is HEALTHY else ["commit 7"])


@with_and_without("order-key-moves")
def test_an_order_key_waits_for_its_broker(mutant: Mutant) -> None:
    datas = tuple(BrokerData("c", name, {0: f"{name}:1"}) for name in ("a", "b"))
    queues = tuple(QueueData(name, 2, 2, 6, 0) for name in ("a", "b"))
    route = Route("t", TopicRoute(datas, queues))
    producer = mutant.client.producer("127.0.0.1:9", rng=Random(1))
    first = producer._choose(route, "t", "key", None)
    again = producer._choose(route, "t", "key", first.broker_name)
    assert (again == first) is (mutant is HEALTHY)
