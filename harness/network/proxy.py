"""User-space TCP proxies between the nodes, one for each ordered pair: links that can be cut.

Node a reaches node b at the proxy of link (a, b). On each connection through it, data from a
crosses the gate of direction (a, b), and the replies of b cross the gate of direction (b, a). So a
one-way cut of a -> b holds the requests on a's connections *and* the replies on b's, as a cut wire
would. A cut holds bytes and never drops one: the pump stops, what it has read stays in its single
buffer, the rest waits in the kernel, and the sender feels back-pressure. The end of a connection
(EOF, reset, refusal) travels in a direction as well, and does not cross a cut either. A new
connection is accepted, and connected to b once the direction is open.

A link can also be shaped (`harness.network.links`): its traffic is delayed or rate-limited,
but arrives complete and in order; its connections are reset now and then; or one end of each is
closed without notice to the other (half-open).

If nodes must know a peer by a single address, there is one proxy in front of each node instead. The
address does not identify the caller then, so the process that holds the other end of the
connection does: the kernel's tables say which. A node may call itself there, which no fault
disturbs. Nodes may then have further such addresses, as for a quorum that elects; all are of the
same links.

Source: DESIGN.md decisions 8 and 10; HARNESSES.md section 5 (own task a link, peer-aware);
toxiproxy's toxics for the vocabulary. For callers, sock_diag(7) for a single socket; /proc/net/tcp
where the kernel lacks it (it lists all sockets, which takes a thousand times as long); proc(5),
/proc/PID/fd.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import math
import os
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import trio

from shaketable.harness.contracts.capabilities import Capability, Link, LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, Json
from shaketable.harness.network.links import Applied, Gates, Lane, Shapes, Waiter

CONNECTIONS_PER_LINK_MAX = 256
LISTEN_BACKLOG = 128
ACCEPT_RETRY_S = 0.1
"""Wait after a failed accept (out of file descriptors) before the next one."""
HEAL_MODES = ("deliver", "reset")
NONE: Mapping[str, Mapping[str, Address]] = {}
PACKET_CAPABILITIES = frozenset(
    {Capability.LOSS, Capability.DUPLICATE, Capability.REORDER, Capability.CORRUPT}
)
"""Capabilities that a stream cannot have."""


class ProxyNetwork:
    """The links among the nodes of one group.

    `upstreams` maps each node to the address at which it listens for its peers. The listening
    sockets exist from construction on, so addresses can be handed out before `run` starts. With
    `callers`, each node has one address for all; `further` are the other addresses at which nodes
    listen (by what is there, then by node), which need `callers`.

    Raises:
        HarnessError: a listening socket could not be opened.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Address],
        host: str = "127.0.0.1",
        callers: Callers | None = None,
        further: Mapping[str, Mapping[str, Address]] = NONE,
    ) -> None:
        assert callers is not None or not further, "the further addresses are the same for all"
        self._upstreams = dict(upstreams)
        self._further = {
            (what, node): at for what, nodes in further.items() for node, at in nodes.items()
        }
        self._callers = callers
        self._gates = Gates(self._upstreams)
        self._shapes = Shapes(self._upstreams)
        self._resets: dict[str, trio.CancelScope] = {}  # of shapes with periodic resets
        self._nursery: trio.Nursery | None = None
        self._connections: set[Connection] = set()
        self._numbers = itertools.count()
        self._listeners: dict[Link, socket.socket] = {}
        self._fronts: dict[str, socket.socket] = {}  # one for all callers
        self._further_fronts: dict[tuple[str, str], socket.socket] = {}
        try:
            if callers is not None:
                for node in self._upstreams:
                    self._fronts[node] = _listen(host)
                for place in self._further:
                    self._further_fronts[place] = _listen(host)
            else:
                for link in itertools.permutations(self._upstreams, 2):
                    self._listeners[link] = _listen(host)
        except OSError as error:
            self.close()
            raise HarnessError(
                f"network: cannot open a proxy on {host}: {error}; raise the limit of open files"
                " (ulimit -n) or use fewer nodes"
            ) from error

    def address(self, a: str, b: str) -> Address:
        """Return the address at which node a reaches node b."""
        return self.advertised(b) if self._fronts else _address(self._listeners[a, b])

    def advertised(self, node: str) -> Address:
        """Return the address at which all others reach the node. Needs `callers`."""
        return _address(self._fronts[node])

    def further(self, what: str, node: str) -> Address:
        """Return the address at which all reach what else the node listens for."""
        return _address(self._further_fronts[what, node])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward bytes until cancelled; then close every socket."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for link, listener in self._listeners.items():
                    upstream = self._upstreams[link[1]]
                    nursery.start_soon(self._accept, _always(link), listener, upstream, nursery)
                fronts = [(n, self._upstreams[n], at) for n, at in self._fronts.items()]
                fronts += [
                    (place[1], self._further[place], at)
                    for place, at in self._further_fronts.items()
                ]
                for node, upstream, listener in fronts:
                    link_of = partial(self._link_from_caller, node)
                    nursery.start_soon(self._accept, link_of, listener, upstream, nursery)
                task_status.started()
        finally:
            self._nursery = None
            self.close()

    def close(self) -> None:
        """Close the listening sockets (idempotent)."""
        for listeners in (self._listeners, self._fronts, self._further_fronts):
            for listener in listeners.values():
                listener.close()

    def cut(self, links: Sequence[Link]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return the cut's id.

        Raises:
            KeyError: a link names an unknown node.
        """
        return self._gates.cut(links)

    def heal(self, cut: str, how: str) -> None:
        """Heal one cut: "deliver" what it held, in order, or "reset" its connections.

        Idempotent. A reset, too, reaches an end only when no other cut closes the direction to it.

        Raises:
            ValueError: `how` is neither.
        """
        if how not in HEAL_MODES:
            raise ValueError(f"heal: {how!r} is none of {', '.join(HEAL_MODES)}")
        if how == "reset":
            links = set(self._gates.links_of(cut))
            for connection in self._connections:
                if not links.isdisjoint(connection.directions):
                    connection.reset()  # before the gates open: no held byte may slip through
        self._gates.heal(cut)

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        return self._gates.open_cuts()

    def held(self, cut: str) -> dict[str, int]:
        """Return what the cut has held so far: {"bytes": n, "connections": n}."""
        return self._gates.held(cut)

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `ShapesLinks.shape`.

        The end `a` of a half-open link gets no reset.

        Raises:
            KeyError: a link names an unknown node.
            ValueError: the shape needs packets.
        """
        if lacking := shape.capabilities & PACKET_CAPABILITIES:
            raise ValueError(f"shape: a stream has no {', '.join(sorted(lacking))}")
        applied = self._shapes.add(links, shape)
        if shape.half_open:
            self._open_half(applied)
        if shape.reset_every_ms and self._nursery is not None:
            self._resets[applied.name] = trio.CancelScope()
            self._nursery.start_soon(self._reset_now_and_then, applied)
        return applied.name

    def unshape(self, shape: str) -> None:
        """Remove a shape (idempotent): delayed data goes on, half-open connections are reset."""
        self._shapes.remove(shape)
        if shape in self._resets:
            self._resets.pop(shape).cancel()
        for connection in self._connections:
            connection.close_half_open(shape)

    def shaped(self, shape: str) -> Json:
        """Return what the shape did: `ShapesLinks.shaped`, plus "half_open" and "unread" bytes."""
        return self._shapes.shaped(shape)

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        return self._shapes.open_shapes()

    def _open_half(self, applied: Applied) -> None:
        """Close the far end of connections on these links; count what the near ends still send."""
        halves = [
            connection
            for connection in self._connections
            for near, _ in applied.links
            if connection.open_half(applied.name, near, set(applied.links))
        ]
        applied.counters.half_open = len(halves)
        applied.counters.unread = partial(_unread_total, halves)

    async def _reset_now_and_then(self, applied: Applied) -> None:
        rng = Random(f"{applied.shape.seed}/resets")
        links = set(applied.links)
        with self._resets[applied.name]:
            while True:
                for connection in self._connections:
                    if connection.is_whole and not links.isdisjoint(connection.directions):
                        connection.reset()
                        applied.counters.resets += 1
                await trio.sleep(applied.shape.reset_every_ms / 1e3 * rng.uniform(0.5, 1.5))

    def forwarded_bytes(self, a: str, b: str) -> int:
        """Return how many bytes crossed from a to b so far."""
        return self._gates.forwarded_bytes((a, b))

    def waiting_bytes(self, a: str, b: str) -> int:
        """Return how many bytes from a to b are held now."""
        return self._gates.waiting_bytes((a, b))

    def _link_from_caller(self, called: str, accepted: socket.socket) -> Link | None:
        """Return the link from the calling node; None if the caller is no node."""
        assert self._callers is not None, "there are no fronts without"
        caller = self._callers.who(accepted)
        return None if caller is None else (caller, called)

    async def _accept(
        self,
        link_of: Callable[[socket.socket], Link | None],
        listener: socket.socket,
        upstream: Address,
        nursery: trio.Nursery,
    ) -> None:
        room = trio.Semaphore(CONNECTIONS_PER_LINK_MAX)
        while True:
            await room.acquire()
            await trio.lowlevel.wait_readable(listener)
            try:
                down, _ = listener.accept()
            except OSError:  # the peer is gone already, or no descriptor is left
                room.release()
                await trio.sleep(ACCEPT_RETRY_S)
                continue
            link = link_of(down)
            if link is None:
                down.close()
                room.release()
                continue
            prepare_socket(down)
            connection = Connection(next(self._numbers), link, down, self._gates, self._shapes)
            self._connections.add(connection)
            nursery.start_soon(self._serve, connection, upstream, room)

    async def _serve(self, connection: Connection, upstream: Address, room: trio.Semaphore) -> None:
        try:
            await connection.run(upstream)
        finally:
            self._connections.discard(connection)
            connection.close()
            room.release()


def _listen(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> Address:
    host, port = listener.getsockname()
    return Address(host, port)


def _always(link: Link) -> Callable[[socket.socket], Link]:
    return lambda _: link


def _unread_total(halves: Sequence[Connection]) -> int:
    return sum(connection.unread_bytes() for connection in halves)


# ---- one TCP connection through a proxy: two sockets, and a pump for each direction
# ---------------

BUFFER_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 10.0
RESET_GRACE_S = 1.0
"""How long data that a peer sent before it vanished may still be delivered."""

_LINGER_ZERO = struct.pack("ii", 1, 0)


class Connection:
    """One connection of a to b.

    `directions` are (a, b) and (b, a). `down` is the socket towards a, `up` towards b.
    """

    def __init__(
        self, number: int, link: Link, down: socket.socket, gates: Gates, shapes: Shapes
    ) -> None:
        self.directions = (link, (link[1], link[0]))
        self._number = number
        self._gates = gates
        self._shapes = shapes
        self._down = down
        self._up: socket.socket | None = None
        self._scope = trio.CancelScope()
        self._is_reset = False
        self._near: str | None = None  # if half-open: the node whose end stays open
        self._half_of = ""  # the shape that made it half-open
        self._notified = trio.Event()
        self._unread_max = 0
        self._broken: set[Link] = set()  # directions whose source is gone
        self._ended = {direction: trio.Event() for direction in self.directions}

    async def run(self, upstream: Address) -> None:
        """Connect to the upstream and forward until both ends are done, or one is reset."""
        onward, back = self.directions
        with self._scope:
            await trio.sleep(self._shapes.delay_s(onward))
            await self._pass(onward)
            self._up = await _connect(upstream)
            if self._up is None:
                await self._pass(back)  # a refusal is a message from b
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, self._down, self._up, onward, back)
                nursery.start_soon(self._pump, self._up, self._down, back, onward)
        if self._is_reset or self._near is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reset_side, self._down, back)
                nursery.start_soon(self._reset_side, self._up, onward)

    @property
    def is_whole(self) -> bool:
        """True while both ends are open and neither is about to close."""
        return self._up is not None and not self._is_reset and self._near is None

    def reset(self) -> None:
        """Reset the connection: each end sees it as soon as its direction is open."""
        self._is_reset = True
        self._notified.set()
        self._scope.cancel()

    def open_half(self, shape: str, near: str, links: set[Link]) -> bool:
        """Reset the far end if the connection crosses one of these links from `near`.

        `near` gets no notice, and what it sends is not read, until `close_half_open`.
        """
        crossed = [link for link in self.directions if link[0] == near]
        if not self.is_whole or links.isdisjoint(crossed):
            return False
        self._near, self._half_of = near, shape
        self._scope.cancel()
        return True

    def close_half_open(self, shape: str) -> None:
        """Reset the near end too, if this shape made the connection half-open."""
        if self._near is not None and self._half_of == shape:
            self.unread_bytes()
            self._notified.set()

    def unread_bytes(self) -> int:
        """Return how many bytes the near end of a half-open connection has sent unread."""
        if self._near is not None and not self._notified.is_set():
            side = self._down if self._near == self.directions[0][0] else self._up
            if side is not None:
                self._unread_max = max(self._unread_max, _unread_bytes(side))
        return self._unread_max

    def close(self) -> None:
        """Close both sockets."""
        self._down.close()
        if self._up is not None:
            self._up.close()

    async def _pump(
        self, source: socket.socket, sink: socket.socket, onward: Link, back: Link
    ) -> None:
        """Carry one direction of the connection until its end."""
        intake = _Intake(source, onward, self._shapes)
        while piece := await intake.next():
            if not await self._forward(source, sink, piece, onward):
                # The sink is gone. That notice travels in the other direction, after what the sink
                # sent before.
                self._broken.add(back)
                await self._pass(back)
                with trio.move_on_after(RESET_GRACE_S):
                    await self._ended[back].wait()
                self.reset()
                return
        await self._pass(onward)
        if piece is None or onward in self._broken:
            self.reset()
            return
        with suppress(OSError):  # the other end is gone
            sink.shutdown(socket.SHUT_WR)
        self._ended[onward].set()

    async def _forward(
        self, source: socket.socket, sink: socket.socket, data: memoryview, link: Link
    ) -> bool:
        """Write `data` through the gate; False if the sink is gone."""
        while data:
            if not self._gates.is_open(link):
                waiter = Waiter(self._number, len(data), partial(_unread_bytes, source))
                await self._gates.pass_through(link, waiter)
            try:
                sent = sink.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sink)
                continue
            except OSError:
                return False
            self._gates.count(link, sent)
            data = data[sent:]
        return True

    async def _pass(self, link: Link) -> None:
        await self._gates.pass_through(link, Waiter(self._number, 0, _nothing))

    async def _reset_side(self, side: socket.socket | None, towards: Link) -> None:
        if self._near == towards[1] and not self._is_reset:
            await self._notified.wait()
        await self._pass(towards)
        if side is not None:
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            side.close()


class _Intake:
    """Reads a socket piece by piece, and releases each piece when the link's shapes allow it.

    An unshaped link costs nothing: data is forwarded from the read buffer without a copy.
    """

    def __init__(self, source: socket.socket, link: Link, shapes: Shapes) -> None:
        self._source = source
        self._link = link
        self._shapes = shapes
        self._lane = Lane(shapes, link)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._has_ended = False
        self._is_broken = False

    async def next(self) -> memoryview | None:
        """Return the next piece; an empty one at the end, None if the peer reset."""
        while True:
            if self._lane.is_empty and not self._has_ended and not self._shapes.on(self._link):
                size = await _receive(self._source, self._buffer)
                if size and not self._shapes.on(self._link):
                    return self._buffer[:size]
                self._put(size)
            due_s = math.inf if self._lane.is_empty else self._lane.due_s()
            now_s = trio.current_time()
            if due_s <= now_s:
                piece = self._lane.take(now_s)
                return piece if piece or not self._is_broken else None
            with self._shapes.waiting(self._link, due_s):
                if self._has_ended or self._lane.is_full:
                    await trio.sleep_forever()
                self._put(await _receive(self._source, self._buffer))

    def _put(self, size: int | None) -> None:
        """Take what was read; an empty piece is the end or a reset."""
        self._has_ended = not size
        self._is_broken = size is None
        self._lane.put(bytes(self._buffer[: size or 0]), trio.current_time())


def prepare_socket(connection: socket.socket) -> None:
    """Make a socket non-blocking for trio, and disable Nagle's algorithm."""
    connection.setblocking(False)
    with suppress(OSError):  # the peer is gone: the first read reports it
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _connect(address: Address) -> socket.socket | None:
    """Connect; None if refused or not connected within `CONNECT_TIMEOUT_S`."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError:  # no descriptor left: the same as refused
        return None
    prepare_socket(connection)
    is_connected = False
    try:
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            with suppress(BlockingIOError):
                connection.connect((address.host, address.port))
            await trio.lowlevel.wait_writable(connection)
            is_connected = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    except OSError:
        return None
    finally:
        if not is_connected:
            connection.close()
    return connection if is_connected else None


async def _receive(source: socket.socket, buffer: memoryview) -> int | None:
    """Read at least a byte; 0 at the end, None if the peer reset."""
    while True:
        await trio.lowlevel.wait_readable(source)
        try:
            return source.recv_into(buffer)
        except BlockingIOError:
            continue
        except OSError:
            return None


def _unread_bytes(source: socket.socket) -> int:
    """Return how many unread bytes the kernel holds for this socket (FIONREAD)."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(source, termios.FIONREAD, count)
    except (OSError, ValueError):  # closed meanwhile
        return 0
    return count[0]


def _nothing() -> int:
    return 0


# Who calls: the node at the other end of a local connection.

PROC = Path("/proc")
INODE_FIELD = 9
"""The field of a line of /proc/net/tcp."""
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
ANY = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ASKED = struct.Struct("=BBBxI")  # inet_diag_req_v2: family, protocol, extensions, states
_SOCKET = struct.Struct("!HH4s12x4s12x")  # inet_diag_sockid: ports and addresses
_REST = struct.Struct("=I2I")  # and its interface and cookie
_INODE = struct.Struct("=I")
_INODE_AT = _HEADER.size + 4 + _SOCKET.size + _REST.size + 16  # in an inet_diag_msg
DIAG_TIMEOUT_S = 0.5
"""The kernel answers at once, or not at all."""

Endpoint = tuple[str, int]


class Callers:
    """Identifies nodes by the connections that they hold.

    `pids` returns the process of each running node. It leads its own session, and its child
    processes count as the node too.
    """

    def __init__(self) -> None:
        self.pids: Callable[[], Mapping[str, int]] = dict

    def who(self, accepted: socket.socket) -> str | None:
        """Return the node at the other end of an IPv4 connection; None if it is not a node.

        Also None if that end is closed already, or the lookup fails: the caller then connects
        again.
        """
        try:
            return self._who(accepted)
        except OSError:
            return None

    def _who(self, accepted: socket.socket) -> str | None:
        here, there = accepted.getsockname(), accepted.getpeername()
        inode = _inode_from_netlink(there, here) or _inode_from_proc(there, here)
        if inode is None:  # it is closed already
            return None
        node_of = {pid: node for node, pid in self.pids().items()}
        wanted = f"socket:[{inode}]"
        for pid in _processes():
            node = node_of.get(_session(pid))
            if node is not None and wanted in _open_files(pid):
                return node
        return None


def _inode_from_netlink(local: Endpoint, remote: Endpoint) -> int | None:
    """Ask the kernel for the inode of the socket with these ends; None if there is none."""
    places = (local[1], remote[1], socket.inet_aton(local[0]), socket.inet_aton(remote[0]))
    question = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, ANY)
    question += _SOCKET.pack(*places) + _REST.pack(0, ANY, ANY)
    size = _HEADER.size + len(question)
    header = _HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(DIAG_TIMEOUT_S)
            kernel.send(header + question)
            answer = kernel.recv(4096)
    except OSError:
        return None
    if _HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    inode: int = _INODE.unpack_from(answer, _INODE_AT)[0]
    return inode or None


def _inode_from_proc(local: Endpoint, remote: Endpoint) -> int | None:
    """Find the inode in the list of all sockets."""
    wanted = [_hex(local), _hex(remote)]
    for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return int(fields[INODE_FIELD]) or None
    return None


def _hex(place: Endpoint) -> str:
    """Format an address as /proc/net/tcp does: "0100007F:1F90"."""
    return f"{int.from_bytes(socket.inet_aton(place[0]), sys.byteorder):08X}:{place[1]:04X}"


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 - by name


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _open_files(pid: int) -> Iterator[str]:
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - by name
    except OSError:
        return
    for name in names:
        try:
            yield str((folder / name).readlink())
        except OSError:  # closed meanwhile
            continue
