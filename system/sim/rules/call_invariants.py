"""Invariants of what clients do within one call.

A history has one line for a call, however often the client asked meanwhile. In virtual time the
client itself takes none, so that each pause, and each lack of one, is its own decision.
Source: RocketMQ's DefaultMQProducerImpl.sendDefaultImpl (what is retried), NettyRemotingClient
(connectTimeoutMillis, responseTable), AllocateMessageQueueAveragely and DefaultMQPushConsumerImpl
(shutdown commits, then unregisters).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

import trio

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.client.connection import (
    CONNECT_TIMEOUT_S,
    ROUTE_AGE_MAX_S,
    Channels,
    Connection,
    DamagedResponseError,
    NameService,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.client.group import BrokerGroupClient
from shaketable.system.client.group_consumer import (
    GroupConsumer,
    GroupMembership,
    QueueReader,
)
from shaketable.system.client.producer import Producer
from shaketable.system.client.pull_consumer import SUBSCRIPTION_FLAG, PullConsumer
from shaketable.system.client.routes import MessageQueue, Route
from shaketable.system.invariants.violated import Violated
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import PullMessage, PullMessageResponse
from shaketable.system.sim.rules.client_history import LATE_MAX_MS, check_filled
from shaketable.system.store.message import DamagedMessage, walk_messages

SEND_CODES: Final = frozenset(
    (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.APPEND_AT)
)
CLIENTS_OWN: Final = SEND_CODES | {RequestCode.DLEDGER_METADATA}
"""Requests that only the client itself repeats at once. Callers do so with others: for each member
of a group that joins, the same missing route is asked for."""
REFUSED_FOR_GOOD: Final = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
    )
)
"""Codes after which the same request would be refused again, by any broker."""
PAUSE_MIN_S: Final = 0.005
ANSWERED_MAX: Final = 1_000
"""Answers of a connection that a second one is compared with: the latest."""
REPEATED_MAX: Final = 20
"""How often a request may be repeated on one connection, each time at once."""
LIMITS: Final = BrokerConfig()
"""Those that brokers have: no broker.conf changes what a pull may bring."""
PAGES_MAX: Final = 100
"""Pulls of a connection that a later one is compared with: the latest of so many queues."""
COMMITS_MAX: Final = 100
"""Offsets that what a consumer notes as committed is compared with, the latest of each queue: two
commits may be under way at once, and it notes that which was answered last."""
ORDER_KEYS_MAX: Final = 1_000
"""Order keys of a producer that are compared, with each set of queues: those used last."""
ROUTE_LATE_S: Final = 1.0
"""How much older than it may be a route has to be before its client is accused."""
ASKS: Final = (
    (BrokerGroupClient, ("metadata", "pull", "pull_from", "max_offset", "min_offset")),
    (PullConsumer, ("pull", "view", "query", "committed", "max_offset", "min_offset")),
)
"""Calls that are about what a broker has now."""

_progress = attrgetter("_offset", "_committed", "_is_lost")
"""Of a reader: up to where it consumed, committed, and whether it has lost its lock."""
_owned = attrgetter("_source", "_readers", "_releasing")
"""Of a consumer: what it reads with, the queues that it reads, and those that it releases."""

Report = Callable[[Violated], None]
Result = TypeVar("Result")
Call = Callable[..., Awaitable[Result]]


@dataclass(slots=True)
class _Repeated:
    """The last request of a connection, and how often it came without a pause."""

    request: tuple[object, ...] = ()
    answered_s: float = 0.0
    times: int = 0


_refusals: ContextVar[list[int] | None] = ContextVar("refusals", default=None)
"""Codes of the refusals that the current call of a client has got; None: there is no call."""


@dataclass(slots=True)
class _Search:
    """Which name servers were asked, and whether one has answered."""

    asked: set[str]
    is_answered: bool = False


_search: ContextVar[_Search | None] = ContextVar("search", default=None)
"""The current search for a name server that answers."""


@dataclass(slots=True)
class _Leading:
    """One search for a group's leader: the members that were asked, and since when."""

    client: BrokerGroupClient
    since_s: float
    asked: set[str]


_leading: ContextVar[_Leading | None] = ContextVar("leading", default=None)
"""The search for a leader that the current call is part of."""


_asks: ContextVar[list[int] | None] = ContextVar("asks", default=None)
"""How many requests the current call has sent."""


@dataclass(frozen=True, slots=True)
class _Page:
    """A pull that brought less than it asked for, though more was there."""

    end: int
    max_offset: int
    sizes: tuple[int, ...]
    count_max: int
    bytes_max: int


@dataclass(slots=True)
class _Silent:
    """A member that did not answer a client's last call, and when the client gave up."""

    address: str
    at_s: float


@dataclass(slots=True)
class _Commits:
    """Of one queue: what its consumer tried to commit last, and what was acknowledged."""

    tried: int | None = None
    acknowledged: int | None = None
    known: deque[int] = field(default_factory=lambda: deque(maxlen=COMMITS_MAX))
    """Acknowledged commits, and where readers began."""


_OrderKeys = OrderedDict[tuple[str, tuple[MessageQueue, ...]], MessageQueue]
"""By order key and the writable queues of its topic: the queue of its messages."""


def share_of(me: str, queues: Collection[MessageQueue], ids: Collection[str]) -> list[MessageQueue]:
    """Return the queues that each client of RocketMQ gives to a consumer of a group by default.

    One that counts otherwise takes queues of other clients, or leaves some to none. Computed apart
    from the clients' own `allocate`, so that a mistake there shows.

    Source: RocketMQ's AllocateMessageQueueAveragely.
    """
    in_order, members = sorted(queues), sorted(set(ids))
    if me not in members:
        return []
    place, rest = members.index(me), len(in_order) % len(members)
    has_one_more = place < rest
    size = max(1, len(in_order) // len(members) + has_one_more)
    start = place * size if has_one_more else place * size + rest
    return in_order[start : start + size]


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.queue_id} of {queue.broker_name}"


def _names(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(map(_name, queues)) or "none"


def _sizes(messages: bytes | memoryview) -> Iterator[int]:
    """Yield the size of each message of an answer, as stored; each begins with it."""
    at = 0
    while at < len(messages):
        size = int.from_bytes(messages[at : at + 4], "big")
        yield size
        at += max(4, size)


class CallRules:
    """The rules, for all clients of one world. `report` gets what was violated.

    `is_timely`: False on real machines, where a call may take longer than its timeout.
    """

    def __init__(self, report: Report, *, is_timely: bool = True) -> None:
        self._report = report
        self._is_timely = is_timely
        self._repeated: WeakKeyDictionary[Connection, _Repeated] = WeakKeyDictionary()
        self._answered: WeakKeyDictionary[Connection, OrderedDict[int, None]] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[PullConsumer, set[MessageQueue]] = WeakKeyDictionary()
        self._addresses: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        self._silent: WeakKeyDictionary[BrokerGroupClient, _Silent] = WeakKeyDictionary()
        self._commits: WeakKeyDictionary[PullConsumer, dict[MessageQueue, _Commits]] = (
            WeakKeyDictionary()
        )
        self._ordered: WeakKeyDictionary[Producer, _OrderKeys] = WeakKeyDictionary()
        self._readers: WeakKeyDictionary[
            PullConsumer, dict[MessageQueue, ReferenceType[QueueReader]]
        ] = WeakKeyDictionary()
        self._pages: WeakKeyDictionary[Connection, OrderedDict[tuple[str, int], _Page]] = (
            WeakKeyDictionary()
        )
        self._looked_up_s: WeakKeyDictionary[NameService, dict[str, float]] = WeakKeyDictionary()
        self._forgot_s: WeakKeyDictionary[NameService, dict[str, float]] = WeakKeyDictionary()

    def asking(self, connection: Connection, command: Command) -> None:
        """A request is about to be sent."""
        if (asks := _asks.get()) is not None:
            asks[0] += 1
        if (leading := _leading.get()) is not None and connection in self._addresses:
            leading.asked.add(self._addresses[connection])
            self._tried(leading.client, self._addresses[connection])
        request = command.code, tuple(command.ext.items()), bytes(command.body)
        last = self._repeated.setdefault(connection, _Repeated())
        is_same = command.code in CLIENTS_OWN and last.request == request
        is_at_once = is_same and trio.current_time() - last.answered_s < PAUSE_MIN_S
        last.times = last.times + 1 if is_at_once else 0
        last.request = request
        if last.times == REPEATED_MAX:
            text = f"request {command.code} is repeated {last.times} times, without a pause"
            self._report(Violated("clients-pause", text))
        refusals = _refusals.get()
        if refusals and (code := refusals[-1]) in REFUSED_FOR_GOOD:
            text = f"request {command.code} is sent after a refusal with code {code}"
            self._report(Violated("refusals-are-final", text))

    def answered(self, connection: Connection, command: Command, answer: Command) -> None:
        """A broker has answered."""
        if answer.opaque != command.opaque:
            text = f"request {command.opaque} is given the answer to request {answer.opaque}"
            self._report(Violated("answers-fit-their-requests", text))
        if command.code == RequestCode.PULL_MESSAGE and answer.code == ResponseCode.SUCCESS:
            self._pulled(connection, command, answer)
        last = self._repeated.setdefault(connection, _Repeated())
        # A message that was stored may be sent again at once: one more of the same.
        is_send = bool(last.request) and last.request[0] in SEND_CODES
        is_stored = is_send and answer.code == ResponseCode.SUCCESS
        last.answered_s = -math.inf if is_stored else trio.current_time()
        if (leading := _leading.get()) is not None:
            self._tried(leading.client, self._addresses.get(connection))
        refusals = _refusals.get()
        if refusals is not None and answer.code != ResponseCode.SUCCESS:
            refusals.append(answer.code)

    def _pulled(self, connection: Connection, command: Command, answer: Command) -> None:
        """A pull has brought messages: how large the next one is, the next pull shows.

        What is damaged the client itself will say.
        """
        try:
            request = PullMessage.from_ext(command.ext)
            response = PullMessageResponse.from_ext(answer.ext)
            first = next(walk_messages(answer.body)).queue_offset
        except (CommandError, DamagedMessage, StopIteration):
            return
        sizes = tuple(_sizes(answer.body))
        pages = self._pages.setdefault(connection, OrderedDict())
        key = request.topic, request.queue_id
        page = pages.pop(key, None)
        # A queue that ends earlier than before is another one: its topic was deleted meanwhile.
        is_next = page is not None and page.end == request.queue_offset == first
        if page is not None and is_next and page.max_offset <= response.max_offset:
            self._check_filled(page, sizes[0], key)
        count_max = max(1, min(request.max_msg_nums, LIMITS.pull_messages_max))
        bytes_max = LIMITS.pull_bytes_max
        if request.max_msg_bytes is not None and request.max_msg_bytes > 0:
            bytes_max = min(bytes_max, request.max_msg_bytes)
        page = _Page(response.next_begin_offset, response.max_offset, sizes, count_max, bytes_max)
        self._check_filled(page, None, key)
        # Without the flag the broker takes the tags that the group's heartbeats name.
        is_of_all = request.sys_flag & SUBSCRIPTION_FLAG and request.subscription == "*"
        if is_of_all and len(sizes) < count_max and page.end < response.max_offset:
            pages[key] = page
            if len(pages) > PAGES_MAX:
                pages.popitem(last=False)

    def _check_filled(self, page: _Page, next_size: int | None, key: tuple[str, int]) -> None:
        try:
            check_filled(page.sizes, next_size, page.count_max, page.bytes_max)
        except Violated as found:
            text = f"a pull of {key[0]}/{key[1]} that ended at offset {page.end}: {found.finding}"
            self._report(Violated(found.invariant, text))

    def answers(self, name: str, requests: int) -> None:
        """A call ends with what a broker has, after it sent so many requests."""
        if not requests:
            text = f"{name} is answered, and no broker was asked"
            self._report(Violated("answers-are-asked-for", text))

    def looked_up(self, names: NameService, topic: str) -> None:
        """A client has asked name servers for a route."""
        self._looked_up_s.setdefault(names, {})[topic] = trio.current_time()

    def forgot(self, names: NameService, topic: str) -> None:
        """A client has found that a route is wrong."""
        self._forgot_s.setdefault(names, {})[topic] = trio.current_time()

    def routed(self, names: NameService, topic: str, since_s: float) -> None:
        """A client uses a route that it has asked for at `since_s`."""
        looked_up_s = self._looked_up_s.get(names, {}).get(topic, -math.inf)
        if looked_up_s >= since_s:
            return
        forgot_s = self._forgot_s.get(names, {}).get(topic, -math.inf)
        if forgot_s > looked_up_s:
            text = f"the route of {topic} is used again, which was found to be wrong"
        elif since_s - looked_up_s > ROUTE_AGE_MAX_S + ROUTE_LATE_S:
            text = f"a route of {topic} is used that is {since_s - looked_up_s:.0f} s old"
        else:
            return
        self._report(Violated("routes-are-looked-up", f"{text}, and no name server was asked"))

    def arrived(self, connection: Connection, opaque: int) -> None:
        """The answer to a request has arrived."""
        answered = self._answered.setdefault(connection, OrderedDict())
        if opaque in answered:
            text = f"request {opaque} of a connection is answered twice"
            self._report(Violated("answers-come-once", text))
        answered[opaque] = None
        if len(answered) > ANSWERED_MAX:
            answered.popitem(last=False)

    def gave_up(self, search: _Search, names: Collection[str]) -> None:
        """A search for a name server that answers has failed."""
        if not search.is_answered and (left := set(names) - search.asked):
            text = f"a client gives up, and has not asked {', '.join(sorted(left))}"
            self._report(Violated("every-name-server-is-asked", text))

    def opening(self, address: str) -> None:
        """A client connects; one that cannot has tried that member all the same."""
        if (leading := _leading.get()) is not None:
            leading.asked.add(address)
            self._tried(leading.client, address)

    def opened(self, connection: Connection, address: str) -> None:
        """A client has connected."""
        self._addresses[connection] = address

    def _tried(self, client: BrokerGroupClient, address: str | None) -> None:
        """Another member is tried, or has said perhaps who leads: the client may ask any again."""
        silent = self._silent.get(client)
        if silent is not None and address != silent.address:
            del self._silent[client]

    def may_ask_any(self, client: BrokerGroupClient) -> None:
        """A member has answered a client, or has left: the client may turn to any again."""
        self._silent.pop(client, None)

    def unanswered(self, leading: _Leading) -> None:
        """A member that was asked as the leader did not answer."""
        if len(leading.asked) != 1:
            self._silent.pop(leading.client, None)
            return
        (address,) = leading.asked
        silent = self._silent.get(leading.client)
        if silent is not None and silent.address == address:
            if leading.since_s > silent.at_s:  # else it was under way already
                text = f"{address} is asked again, which did not answer the call before"
                self._report(Violated("others-are-asked", text))
        elif len(leading.client.members) > 1:
            self._silent[leading.client] = _Silent(address, trio.current_time())

    def locked(self, source: PullConsumer, queues: Collection[MessageQueue], held: object) -> None:
        """A consumer has asked for the locks of queues; `held` are those that it got."""
        mine = self._locks.setdefault(source, set())
        mine.difference_update(queues)
        if isinstance(held, frozenset):
            mine.update(held)

    def reading(self, reader: QueueReader) -> None:
        """A consumer begins to read a queue that it is to read in order."""
        source, queue = attrgetter("_source", "_queue")(reader)
        self._readers.setdefault(source, {})[queue] = ref(reader)
        if queue not in self._locks.get(source, ()):
            text = f"{_name(queue)} is read in order by a consumer without its lock"
            self._report(Violated("locks-come-first", text))

    def divided(
        self,
        me: str,
        queues: Sequence[MessageQueue],
        ids: Sequence[str],
        share: Sequence[MessageQueue],
    ) -> None:
        """A consumer has taken its share of a topic's queues."""
        due = share_of(me, queues, ids)
        if list(share) != due:
            text = (
                f"consumer {me} takes the queues {_names(share)}; its share of {len(queues)} queues"
                f" among {len(set(ids))} consumers is {_names(due)}"
            )
            self._report(Violated("shares-add-up", text))

    def committing(self, source: PullConsumer, queue: MessageQueue, offset: int) -> None:
        """A consumer asks a broker to commit its group's offset in a queue."""
        self._commits_of(source, queue).tried = offset

    def committed(self, source: PullConsumer, queue: MessageQueue, offset: int) -> None:
        """A broker has committed it."""
        commits = self._commits_of(source, queue)
        commits.acknowledged = offset
        commits.known.append(offset)

    def started_at(self, reader: QueueReader, offset: int) -> None:
        """A consumer begins to read a queue, or goes on after its lock was lost, at an offset."""
        self._commits_of(*attrgetter("_source", "_queue")(reader)).known.append(offset)

    def has_committed(self, reader: QueueReader) -> None:
        """A consumer has tried to commit what it consumed, and notes up to where it got."""
        consumed, noted, is_lost = _progress(reader)
        queue = attrgetter("_queue")(reader)
        commits = self._commits_of(attrgetter("_source")(reader), queue)
        if None in (noted, consumed) or is_lost or not commits.known:
            return
        if noted not in commits.known:
            text = (
                f"a consumer notes that {_name(queue)} is committed up to {noted}; the last commit"
                f" that a broker has acknowledged to it is {commits.acknowledged}"
            )
            self._report(Violated("noted-is-committed", text))

    def _commits_of(self, source: PullConsumer, queue: MessageQueue) -> _Commits:
        return self._commits.setdefault(source, {}).setdefault(queue, _Commits())

    def chosen(
        self, producer: Producer, order_key: str, queues: tuple[MessageQueue, ...], to: MessageQueue
    ) -> None:
        """A producer sends a message with an order key to one of a topic's writable queues."""
        of_keys = self._ordered.setdefault(producer, OrderedDict())
        before = of_keys.setdefault((order_key, queues), to)
        of_keys.move_to_end((order_key, queues))
        if len(of_keys) > ORDER_KEYS_MAX:
            of_keys.popitem(last=False)
        if before != to:
            text = (
                f"a message with order key {order_key} goes to {_name(to)}, another went to"
                f" {_name(before)}, and the topic's queues are the same"
            )
            self._report(Violated("order-keys-keep-their-queue", text))

    def leaving(self, consumer: GroupConsumer) -> None:
        """A consumer is about to leave its group in good order."""
        readers: dict[MessageQueue, QueueReader] = attrgetter("_readers")(consumer)
        for queue, reader in readers.items():
            if left := self._uncommitted(queue, reader):
                text = f"a consumer leaves its group, {left}"
                self._report(Violated("who-leaves-has-committed", text))

    def unlocking(self, consumer: GroupConsumer, queues: Collection[MessageQueue]) -> None:
        """A consumer is about to give locks back.

        A queue that it has not released in time it gives back at its end, whatever was committed.
        """
        source, owned, releasing = _owned(consumer)
        readers = self._readers.get(source, {})
        for queue in queues:
            is_owned = queue in owned or queue in releasing
            reader = readers[queue]() if is_owned and queue in readers else None
            if reader is not None and (left := self._uncommitted(queue, reader)):
                text = f"a consumer gives the lock of a queue back, {left}"
                self._report(Violated("unlocked-is-committed", text))

    def _uncommitted(self, queue: MessageQueue, reader: QueueReader) -> str:
        """Say what was consumed, is not committed, and was not tried to be; "" if nothing."""
        consumed, committed, is_lost = _progress(reader)
        commits = self._commits_of(attrgetter("_source")(reader), queue)
        if consumed in (None, committed, commits.tried) or is_lost:
            return ""
        return (
            f"has consumed {_name(queue)} up to {consumed}, committed it up to {committed}, and has"
            " not tried to commit the rest"
        )

    def check_time(self, what: str, since_s: float, may_s: float) -> None:
        """Report what took longer than it may."""
        took_ms = (trio.current_time() - since_s) * 1000
        if self._is_timely and took_ms > may_s * 1000 + LATE_MAX_MS:
            text = f"{what} took {took_ms:.0f} ms, {may_s * 1000:.0f} ms it may"
            self._report(Violated("calls-end-in-time", text))


def _open(rules: CallRules, call: Any) -> Any:
    """Bound how long a client waits for a connection."""

    async def opened(kind: type[Connection], host: str, port: int, timeout_s: float) -> Connection:
        since_s = trio.current_time()
        rules.opening(f"{host}:{port}")
        try:
            connection: Connection = await call.__func__(kind, host, port, timeout_s)
        except OSError:
            rules.opening(f"{host}:{port}")  # only now does the client turn to another member
            raise
        else:
            rules.opened(connection, f"{host}:{port}")
            return connection
        finally:
            rules.check_time(f"to connect to {host}:{port}", since_s, CONNECT_TIMEOUT_S)

    return classmethod(opened)


def _call(rules: CallRules, call: Call[Command]) -> Call[Command]:
    """Watch each request of a connection and its answer."""

    @wraps(call)
    async def called(connection: Connection, command: Command, timeout_s: float) -> Command:
        rules.asking(connection, command)
        answer = await call(connection, command, timeout_s)
        rules.answered(connection, command, answer)
        return answer

    return called


def _call_at(rules: CallRules, call: Call[Command]) -> Call[Command]:
    """Bound how long one request takes, with the connection that it needs."""

    @wraps(call)
    async def called(
        channels: Channels, address: str, command: Command, timeout_s: float
    ) -> Command:
        since_s = trio.current_time()
        search = _search.get()
        if search is not None:
            search.asked.add(address)
        try:
            answer = await call(channels, address, command, timeout_s)
            if search is not None:
                search.is_answered = True
            return answer
        finally:
            rules.check_time(f"request {command.code} to {address}", since_s, max(0.0, timeout_s))

    return called


def _call_for(rules: CallRules, call: Any) -> Any:
    """Watch the answers that arrive."""

    @wraps(call)
    def called(connection: Connection, response: Command) -> Any:
        rules.arrived(connection, response.opaque)
        return call(connection, response)

    return called


def _ask(rules: CallRules, call: Call[Command]) -> Call[Command]:
    """Watch which name servers are asked."""

    @wraps(call)
    async def called(names: NameService, *args: Any, **ext: str) -> Command:
        known, search = attrgetter("_addresses")(names), _Search(set())
        token = _search.set(search)
        try:
            return await call(names, *args, **ext)
        except (RefusedError, OutcomeUnknownError):
            rules.gave_up(search, known)
            raise
        finally:
            _search.reset(token)

    return called


def _names_of(rules: CallRules, call: Any) -> Any:
    """Watch which routes a client uses, whatever class looks them up."""

    @wraps(call)
    def called(names: NameService, *args: Any, **options: Any) -> None:
        call(names, *args, **options)
        route, forget, ask = names.route, names.forget, names.ask

        async def asked(*args: Any, **ext: Any) -> Any:
            try:
                return await ask(*args, **ext)
            finally:
                if (topic := ext.get("topic")) is not None:
                    rules.looked_up(names, topic)

        async def routed(topic: str, *args: Any, **options: Any) -> Any:
            since_s = trio.current_time()
            found = await route(topic, *args, **options)
            rules.routed(names, topic, since_s)
            return found

        def forgotten(topic: str) -> None:
            forget(topic)
            rules.forgot(names, topic)

        vars(names).update(ask=asked, route=routed, forget=forgotten)

    return called


def _asking(calls: Sequence[str]) -> Callable[[CallRules, Any], Any]:
    """Watch that a client's answers are those of brokers, whatever class it is of."""

    def watch(rules: CallRules, call: Any) -> Any:
        @wraps(call)
        def called(client: Any, *args: Any, **options: Any) -> None:
            call(client, *args, **options)
            for name in calls:
                vars(client)[name] = _asked(rules, name, getattr(client, name))

        return called

    return watch


def _asked(rules: CallRules, name: str, call: Call[Result]) -> Call[Result]:
    @wraps(call)
    async def called(*args: Any, **options: Any) -> Result:
        outer, mine = _asks.get(), [0]
        token = _asks.set(mine)
        try:
            result = await call(*args, **options)
        finally:
            _asks.reset(token)
            if outer is not None:
                outer[0] += mine[0]
        rules.answers(name, mine[0])
        return result

    return called


def _at_leader(rules: CallRules, call: Call[Result]) -> Call[Result]:
    """Watch which members are asked as the leader."""

    @wraps(call)
    async def called(client: BrokerGroupClient, *args: Any) -> Result:
        leading = _Leading(client, trio.current_time(), set())
        token = _leading.set(leading)
        try:
            result = await call(client, *args)
        except DamagedResponseError:
            rules.may_ask_any(client)  # badly, but it did answer
            raise
        except OutcomeUnknownError:
            rules.unanswered(leading)
            raise
        finally:
            _leading.reset(token)
        rules.may_ask_any(client)
        return result

    return called


def _forget(rules: CallRules, call: Any) -> Any:
    """A client that forgets a member that has left turns to any of the others."""

    @wraps(call)
    def called(client: BrokerGroupClient, member: str) -> None:
        call(client, member)
        rules.may_ask_any(client)

    return called


def _lock(rules: CallRules, call: Any) -> Any:
    """Watch which locks a consumer gets."""

    @wraps(call)
    async def called(consumer: GroupConsumer, queues: tuple[MessageQueue, ...]) -> Any:
        held = await call(consumer, queues)
        rules.locked(attrgetter("_source")(consumer), queues, held)
        return held

    return called


def _unlock(rules: CallRules, call: Call[None]) -> Call[None]:
    """Watch when a consumer gives its locks back."""

    @wraps(call)
    async def called(consumer: GroupConsumer, queues: tuple[MessageQueue, ...]) -> None:
        rules.unlocking(consumer, queues)
        await call(consumer, queues)

    return called


def _run(rules: CallRules, call: Call[None]) -> Call[None]:
    """Watch which queues are read in order."""

    @wraps(call)
    async def called(reader: QueueReader) -> None:
        if attrgetter("_is_ordered")(reader):
            rules.reading(reader)
        await call(reader)

    return called


def _member(rules: CallRules, call: Any) -> Any:
    """Watch how a consumer divides queues with others, whatever class it is of."""

    @wraps(call)
    def called(member: GroupMembership, *args: Any, **options: Any) -> None:
        call(member, *args, **options)
        allocate = attrgetter("_allocate")(member)

        def allocated(queues: Sequence[MessageQueue], ids: Sequence[str]) -> Any:
            share = allocate(queues, ids)
            rules.divided(member.client_id, queues, ids, share)
            return share

        vars(member)["_allocate"] = allocated

    return called


def _consumer(rules: CallRules, call: Any) -> Any:
    """Watch how a consumer leaves its group."""

    @wraps(call)
    def called(consumer: GroupConsumer, *args: Any, **options: Any) -> None:
        call(consumer, *args, **options)
        member = attrgetter("_membership")(consumer)
        leave = member.leave

        async def left() -> Any:
            rules.leaving(consumer)
            return await leave()

        member.leave = left

    return called


def _reader(rules: CallRules, call: Any) -> Any:
    """Watch what a consumer notes as committed of its queues, whatever class reads them."""

    @wraps(call)
    def called(reader: QueueReader, *args: Any, **options: Any) -> None:
        call(reader, *args, **options)
        commit = reader.commit

        async def committed() -> None:
            await commit()
            rules.has_committed(reader)

        vars(reader)["commit"] = committed

    return called


def _commit_offset(rules: CallRules, call: Call[None]) -> Call[None]:
    """Watch what a consumer asks brokers to commit."""

    @wraps(call)
    async def called(source: PullConsumer, queue: MessageQueue, offset: int, **more: Any) -> None:
        rules.committing(source, queue, offset)
        await call(source, queue, offset, **more)
        rules.committed(source, queue, offset)

    return called


def _start_offset(rules: CallRules, call: Call[int]) -> Call[int]:
    """Watch where a consumer begins to read a queue."""

    @wraps(call)
    async def called(reader: QueueReader) -> int:
        offset = await call(reader)
        rules.started_at(reader, offset)
        return offset

    return called


def _producer(rules: CallRules, call: Any) -> Any:
    """Watch to which queues messages with an order key go, whatever class sends them."""

    @wraps(call)
    def called(producer: Producer, *args: Any, **options: Any) -> None:
        call(producer, *args, **options)
        choose = attrgetter("_choose")(producer)

        def chosen(
            route: Route, topic: str, order_key: str | None, avoided: str | None
        ) -> MessageQueue:
            queue: MessageQueue = choose(route, topic, order_key, avoided)
            if order_key is not None:
                rules.chosen(producer, order_key, route.writable, queue)
            return queue

        vars(producer)["_choose"] = chosen

    return called


def _whole(_: CallRules, call: Call[Result]) -> Call[Result]:
    """Begin a call of a client, unless it is a part of another one."""

    @wraps(call)
    async def called(*args: Any, **options: Any) -> Result:
        if _refusals.get() is not None:
            return await call(*args, **options)
        token = _refusals.set([])
        try:
            return await call(*args, **options)
        finally:
            _refusals.reset(token)

    return called


WATCHED: Final[tuple[tuple[type, str, Callable[[CallRules, Any], Any]], ...]] = (
    (Connection, "open", _open),
    (Connection, "call", _call),
    (Connection, "_call_for", _call_for),
    (NameService, "ask", _ask),
    (NameService, "__init__", _names_of),
    *((kind, "__init__", _asking(calls)) for kind, calls in ASKS),
    (GroupConsumer, "_lock", _lock),
    (GroupConsumer, "_unlock", _unlock),
    (QueueReader, "run", _run),
    (QueueReader, "__init__", _reader),
    (QueueReader, "_start_offset", _start_offset),
    (PullConsumer, "commit", _commit_offset),
    (Producer, "__init__", _producer),
    (GroupMembership, "__init__", _member),
    (GroupConsumer, "__init__", _consumer),
    (Channels, "call", _call_at),
    (BrokerGroupClient, "_at_leader", _at_leader),
    (BrokerGroupClient, "forget", _forget),
    *((BrokerGroupClient, name, _whole) for name in ("send", "send_at", "send_batch", "pull")),
    *((BrokerGroupClient, name, _whole) for name in ("max_offset", "min_offset", "ask_leader")),
    *((Producer, name, _whole) for name in ("send", "send_batch")),
)


@contextmanager
def watched_calls(report: Report, *, is_timely: bool = True) -> Iterator[None]:
    """Watch the calls of all clients of this process; the classes are restored afterwards."""
    rules = CallRules(report, is_timely=is_timely)
    before = [(kind, name, vars(kind)[name]) for kind, name, _ in WATCHED]
    for (kind, name, watch), (_, _, call) in zip(WATCHED, before, strict=True):
        setattr(kind, name, watch(rules, call))
    try:
        yield
    finally:
        for kind, name, call in before:
            setattr(kind, name, call)
