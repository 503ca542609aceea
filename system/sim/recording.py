"""Replays a recorded run of a real node step by step, with the same code, and compares.

Every recorded input goes into a broker built like the node's; random numbers and disk reads come
from the recording. After each step with output its digest is compared with the recorded one. The
replay ends at the first difference: either the code is not what ran, or it depends on something
that is not a recorded input. Source: SIMULATION.md, section Record and replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from shaketable.system import mutants
from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.broker.limits import DataFile
from shaketable.system.node.broker_start import BrokerStart, Readers, build_broker
from shaketable.system.node.recorder import (
    INPUTS,
    BadRecording,
    Record,
    digest_of,
    digest_of_checkpoint,
    read_records,
)
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Compact,
    Install,
    Message,
    SaveState,
    Truncate,
    Write,
)
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendRequest
from shaketable.system.sim.run_trace import describe
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.consume_queue_files import Queue
from shaketable.system.store.disk import StoreError

_MESSAGES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


@dataclass(frozen=True, slots=True)
class Step:
    """One input and its result.

    `at_ms` is milliseconds since the node's start, by its own clock; None where the input has no
    time. `difference` is "" as long as the replay matches; a step with a difference is the last.
    """

    number: int
    at_ms: float | None
    text: str
    difference: str = ""

    def __str__(self) -> str:
        at = "" if self.at_ms is None else f" at {self.at_ms:.1f} ms"
        line = f"step {self.number}{at}: {self.text}"
        return f"{line}\n  DIFFERS: {self.difference}" if self.difference else line


class _Diverged(Exception):  # noqa: N818 - a finding about the replay
    """The replayed code requested or did something else than was recorded."""


class _CutOff(Exception):  # noqa: N818 - a finding about the recording
    """The recording ends within a step: the node was killed."""


def replay(path: Path) -> Iterator[Step]:
    """Replay a recording; yield each step, the last one with its difference if there is one.

    A step that was recorded incompletely, since the node was killed, is not replayed. Raises
    BadRecording for a file that is no recording, or one that this code's data types do not fit.
    """
    tape = _Tape(path)
    start = tape.start()
    yield Step(0, 0.0, _described_start(start))
    try:
        broker = _build(start, tape, path)
    except _CutOff:
        return
    inputs = _Inputs(broker, tape)
    number = 0
    while (record := tape.next_input()) is not None:
        number += 1
        try:
            text, at_ms = inputs.feed(record)
        except _CutOff:
            return
        except _Diverged as found:
            yield Step(number, None, str(record[0]), str(found))
            return
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise BadRecording(f"{path}: step {number} cannot be read: {error}") from None
        since_ms = None if at_ms is None else at_ms - start.now_ms
        yield Step(number, since_ms, text, inputs.difference)
        if inputs.difference:
            return


def _build(start: BrokerStart, tape: _Tape, path: Path) -> Broker:
    try:
        parts = mutants.load(start.mutant) if start.mutant else mutants.HEALTHY
    except KeyError:
        raise BadRecording(
            f"{path} is of a node with the mutant {start.mutant}, unknown here"
        ) from None
    try:
        return build_broker(start, parts, Readers(tape, tape, tape), tape.uniform_ms)
    except _Diverged as found:
        raise BadRecording(f"{path}: the node cannot be built as it was: {found}") from None


class _Tape:
    """The recording, read forwards: inputs in order, random numbers and reads on request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = read_records(path)
        self._ahead: Record | None = next(self._records, None)

    def start(self) -> BrokerStart:
        """Return the first record. Raises BadRecording."""
        record = self._ahead
        if record is None or record[0] != "start":
            raise BadRecording(f"{self._path} is cut off before its first record")
        self._step()
        try:
            return msgspec.convert(record[1], BrokerStart)
        except msgspec.ValidationError as error:
            raise BadRecording(f"{self._path} was recorded by other code: {error}") from None

    def next_input(self) -> Record | None:
        """Return the next input, None at the end. Raises BadRecording for any other record."""
        record = self._ahead
        if record is None:
            return None
        if record[0] not in INPUTS:
            raise BadRecording(f"{self._path}: {record[0]} is where an input should be")
        self._step()
        return record

    def take(self, kind: str) -> Record | None:
        """Return the next record if it is of that kind, else None."""
        record = self._ahead
        if record is None or record[0] != kind:
            return None
        self._step()
        return record

    @property
    def is_at_end(self) -> bool:
        """Whether the recording is exhausted: the last step's output was not recorded."""
        return self._ahead is None

    def uniform_ms(self, low: float, high: float) -> float:
        """Return the random number that the node got."""
        record = self._during("draw")
        if record is None or not low <= record[1] <= high:
            raise _Diverged(f"it draws from {low} to {high}, the node did not")
        return float(record[1])

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        """Return what the node read of its log. Raises StoreError as it did."""
        return msgspec.convert(self._read(f"entries from {first_index} on"), Batch)

    def read(self, position: int, size: int) -> bytes:
        """Return what the node read of its log. Raises StoreError as it did."""
        return bytes(self._read(f"{size} bytes at {position}"))

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        """Return what the node read of a consume queue. Raises StoreError as it did."""
        return bytes(self._read(f"{count} units of {queue} from {offset} on"))

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return what the node found in its key index. Raises StoreError as it did."""
        return iter(self._read(f"key {key!r} of {topic!r} from {begin_ms} to {end_ms}"))

    def _read(self, what: str) -> Any:
        record = self._during("read")
        if record is None:
            raise _Diverged(f"it reads {what}, the node did not")
        if record[1]:
            raise _store_error(record[1])(record[2])
        return record[2]

    def _during(self, kind: str) -> Record | None:
        """Return the next record of a step if it is of that kind. Raises _CutOff at the end."""
        if self._ahead is None:
            raise _CutOff
        return self.take(kind)

    def _step(self) -> None:
        self._ahead = next(self._records, None)


def _store_error(name: str) -> Callable[[str], StoreError]:
    """Return the StoreError subclass of that name, or StoreError itself."""
    found: list[type[StoreError]] = [StoreError]
    for kind in found:
        if kind.__name__ == name and kind.__init__ is StoreError.__init__:
            return kind
        found += kind.__subclasses__()
    return StoreError


class _Inputs:
    """Feeds inputs to a broker; `difference` is how the last one differed, "" if it did not."""

    def __init__(self, broker: Broker, tape: _Tape) -> None:
        self._broker = broker
        self._tape = tape
        self._taken: list[BrokerCheckpoint | None] = []
        self.difference = ""

    def feed(self, record: Record) -> tuple[str, float | None]:
        """Feed one input; return its text and its time. Raises _Diverged."""
        name, *data = record
        args, text, at_ms = self._arguments(name, data)
        self.difference = ""
        try:
            result = getattr(self._broker, name)(*args)
        except (_Diverged, _CutOff):
            raise
        except Exception as error:
            return f"{text} -> {self._ended(error)}", at_ms
        if (raised := self._tape.take("raised")) is not None:
            self.difference = f"the node raised {raised[1]}: {raised[2]}"
        elif name == "take":
            self._compare(digest_of(result))
            text = f"{text} -> {_described_effects(result)}"
        elif name == "take_checkpoint":
            self._taken.append(result)
            self._compare(digest_of_checkpoint(result))
        left = self._tape.take("draw") or self._tape.take("read")
        if not self.difference and left is not None:
            self.difference = f"the node made a {left[0]} here, the replay did not"
        return text, at_ms

    def _compare(self, digest: bytes) -> None:
        if self._tape.is_at_end:
            return
        gave = self._tape.take("gave")
        if gave is None:
            self.difference = "the replay ended this step otherwise than the node"
        elif gave[1] != digest:
            self.difference = f"digest {digest.hex()}, the node's was {gave[1].hex()}"

    def _ended(self, error: Exception) -> str:
        raised = self._tape.take("raised")
        said = f"{type(error).__name__}: {error}"
        if raised is None and not self._tape.is_at_end:
            self.difference = f"it raises {said}, the node went on"
        elif raised is not None and f"{raised[1]}: {raised[2]}" != said:
            self.difference = f"it raises {said}, the node raised {raised[1]}: {raised[2]}"
        return f"ended with {said}"

    def _arguments(self, name: str, data: list[Any]) -> tuple[list[Any], str, float | None]:
        """Return an input's arguments, its text, and its time."""
        if name == "handle":
            connection, born_host, kinds, now_ms, wall_ms = data
            requests = [_request(is_send, content) for is_send, content in kinds]
            text = f"{len(requests)} requests of connection {connection}"
            return [connection, born_host, requests, now_ms, wall_ms], text, now_ms
        if name == "receive":
            kind, content, now_ms = data
            message = msgspec.convert(content, _MESSAGES[kind])
            return [message, now_ms], _described_message(message), now_ms
        if name == "disk_usage":
            used_ratio, files, now_ms, wall_ms = data
            known = msgspec.convert(files, list[DataFile])
            return (
                [used_ratio, known, now_ms, wall_ms],
                f"the disk is {used_ratio:.0%} full",
                now_ms,
            )
        if name == "checkpointed":
            number = data[0]
            if not 0 < number <= len(self._taken):
                raise _Diverged("a checkpoint is durable that was never taken")
            return [self._taken[number - 1]], f"checkpoint {number} is durable", None
        return data, *_described_simple(name, data)


def _request(is_send: bool, content: dict[str, Any]) -> SendRequest | Command:
    """Return a request as decoded from its frame: its body is a view."""
    if is_send:
        return msgspec.convert(content, SendRequest)
    return Command(**{**content, "body": memoryview(content["body"])})


def _described_start(start: BrokerStart) -> str:
    bug = f", planted bug {start.mutant}" if start.mutant else ""
    return (
        f"{start.member} starts at term {start.term} with a log up to {start.end_index},"
        f" voters {' '.join(start.bootstrap.voters) or 'none'}{bug}"
    )


def _described_simple(name: str, data: list[Any]) -> tuple[str, float | None]:
    if name in ("tick", "take", "resign"):
        return name, data[0]
    if name == "synced":
        return f"writes up to {data[0]} are durable", data[1] if len(data) > 1 else None
    if name == "connection_closed":
        return f"connection {data[0]} is gone", None
    if name == "disk_full":
        return f"the disk is {'full' if data[0] else 'not full any more'}", data[1]
    return name.replace("_", " "), None


def _described_message(message: Message) -> str:
    sender = next(
        (
            str(getattr(message, name))
            for name in ("candidate", "voter", "follower", "leader")
            if hasattr(message, name)
        ),
        "?",
    )
    return f"from {sender} {describe(message)}"


def _described_effects(effects: BrokerEffects) -> str:
    parts = [_described_write(write) for write in effects.writes]
    parts += [f"to {peer} {describe(message)}" for peer, message in effects.messages]
    parts += [
        f"{len(replies)} replies to connection {connection}"
        for connection, replies in effects.replies.items()
    ]
    parts += [
        f"{change.role.value} of term {change.term}, leader {change.leader or 'unknown'}"
        for change in effects.role_changes
    ]
    return "; ".join(parts) or "nothing"


def _described_write(write: Write) -> str:
    if isinstance(write, Append):
        return f"write {write.batch.first_index}..{write.batch.last_index}"
    if isinstance(write, SaveState):
        return f"save term {write.term} vote {write.voted_for or '-'}"
    if isinstance(write, Truncate):
        return f"truncate after {write.end_index}"
    assert isinstance(write, Compact | Install)
    kind = "compact" if isinstance(write, Compact) else "install"
    return f"{kind} up to {write.snapshot.end.index}"
