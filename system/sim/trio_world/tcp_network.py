"""The simulated network between processes: TCP over the links of `system.sim.network`.

Sockets are injected through trio's documented hooks (`set_custom_socket_factory` and
`set_custom_hostname_resolver`), so the code that uses them is the one that runs in real processes.
"""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.network import Link
from shaketable.system.sim.schedules.faults import LinkFault
from shaketable.system.sim.schedules.random_streams import RandomStream, RandomStreams
from shaketable.system.sim.trio_world.clocks import CURRENT, HeapClock, Park, Process
from shaketable.system.sim.trio_world.tcp_pipe import (
    RETRANSMISSION_MS,
    Flag,
    Pipe,
    Segment,
    UnsentBytes,
)

# A socket of a simulated process, as trio's own code sees it.
#
# Source: trio.socket.SocketType (the documented way to plug in another network).

BACKLOG_MAX = 128
FIRST_FILENO = 100_000

Address = tuple[str, int]


def failure(number: int) -> OSError:
    """Return the operating system's error of that number."""
    return OSError(number, os.strerror(number))


class SimSocket(trio.socket.SocketType):
    """A TCP socket over `TcpNetwork`. It belongs to one process and dies with it."""

    def __init__(self, network: TcpNetwork, process: Process, number: int) -> None:
        self.process = process
        self.number = number
        self.local: Address = (process.address, 0)
        self.remote: Address | None = None
        self.outgoing: Pipe | None = None
        self.incoming: Pipe | None = None
        self.accepted: list[SimSocket] = []
        self.is_listening = False
        self._network = network
        self._is_closed = False
        self._is_reset = False
        self._has_ended = False  # the other side sent its FIN
        self._has_shut = False
        self._owed = UnsentBytes()
        self._connect_error: int | None = None  # 0: connected
        self._readable = Park(process)
        self._writable = Park(process)
        self.on_readable: Callable[[], None] | None = None
        """Called when the socket may have become readable, in addition to waking a waiting task."""

    # trio keeps sockets in sets, whose order must be the same in every run.
    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<simulated socket {self.number} of {self.process.host}>"

    # ---- non-blocking -------------------------------------------------------------------

    @property
    def family(self) -> socket.AddressFamily:
        """IPv4, always."""
        return socket.AF_INET

    @property
    def type(self) -> socket.SocketKind:
        """A stream, always."""
        return socket.SOCK_STREAM

    @property
    def proto(self) -> int:
        """TCP, always."""
        return socket.IPPROTO_TCP

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802 - trio's name
        """Whether this side has shut down sending."""
        return self._has_shut

    def fileno(self) -> int:
        """Return a number that no real file has; -1 once closed."""
        return -1 if self._is_closed else FIRST_FILENO + self.number

    def getsockname(self) -> Any:
        """Return the local address."""
        self._check_open()
        return self.local

    def getpeername(self) -> Any:
        """Return the remote address. Raises OSError where there is none."""
        self._check_open()
        if self.remote is None or self._connect_error != 0:
            raise failure(errno.ENOTCONN)
        return self.remote

    def getsockopt(self, level: int, optname: int, buflen: int | None = None) -> Any:
        """Support SO_ACCEPTCONN, which trio queries."""
        assert buflen is None
        return int(level == socket.SOL_SOCKET and optname == socket.SO_ACCEPTCONN)

    def setsockopt(self, level: int, optname: int, value: Any, optlen: int | None = None) -> None:
        """Accept every option; all are ignored."""

    def listen(self, backlog: int = BACKLOG_MAX) -> None:
        """Accept connections from now on."""
        self._check_open()
        self.is_listening = True
        self._network.listen(self)

    def shutdown(self, flag: int) -> None:
        """Shut down sending."""
        self._check_open()
        assert flag == socket.SHUT_WR
        assert self.outgoing is not None
        if not self._has_shut:
            self._has_shut = True
            self.outgoing.send(Flag.FIN)

    def recv_nowait(self, buffer: memoryview) -> int | None:
        """Receive available bytes; return 0 at the remote end's FIN, None if there are none yet."""
        self._check_open()
        pipe = self.incoming
        assert pipe is not None
        if pipe.unread:
            count = pipe.part(min(len(pipe.unread), len(buffer)))
            buffer[:count] = pipe.unread[:count]
            del pipe.unread[:count]
            self._network.read(self)
            return count
        if self._is_reset:
            raise failure(errno.ECONNRESET)
        return 0 if self._has_ended else None

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send some of the bytes; return 0 while the window is full."""
        self._check_open()
        pipe = self.outgoing
        if pipe is None or self._has_shut or self._is_reset:
            raise failure(errno.EPIPE)
        room = pipe.room_for(len(data))
        if room <= 0:
            return 0
        size = pipe.part(room)
        view = memoryview(data)
        try:
            self._owed.sent(view, size)
        except Violated as found:
            found.node = self.process.host
            self._network.report(found)
        segment = bytes(view[:size])
        pipe.send(segment)
        return len(segment)

    def is_readable(self) -> bool:
        """Return whether `recv_nowait` has bytes, an end or an error to return."""
        has_bytes = self.incoming is not None and bool(self.incoming.unread)
        return has_bytes or self._is_reset or self._has_ended or not self.is_open

    def close(self) -> None:
        """Close: the remote end reads what was sent and then the end.

        It gets a reset where unread bytes were left, as Linux does.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._network.forget(self)
        for waiting in self.accepted:
            waiting.close()
        if self.outgoing is not None and self.incoming is not None and not self._is_reset:
            if self.incoming.unread:
                self.outgoing.send(Flag.RST)
            elif not self._has_shut:
                self.outgoing.send(Flag.FIN)
            self.incoming.unread.clear()
        self._wake_reader()
        self._writable.wake()

    def vanish(self) -> None:
        """The machine lost power: the remote end is not notified."""
        self._is_closed = True
        self._network.forget(self)
        for waiting in self.accepted:
            waiting.vanish()

    # ---- blocking -----------------------------------------------------------------------

    async def bind(self, address: Any) -> None:
        """Bind to an address of this host. Raises OSError where it is in use."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        self.local = self._network.free_address(self.process, address[1])

    async def accept(self) -> tuple[trio.socket.SocketType, Any]:
        """Wait for a connection."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.accepted:
            self._check_waiting()
            await self._readable.wait()
        self._check_waiting()
        found = self.accepted.pop(0)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return found, found.remote

    async def connect(self, address: Any) -> None:
        """Connect. Raises OSError; a host that is cut off or down does not answer."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        self.remote = (address[0], address[1])
        try:
            self._network.connect(self)
            while self._connect_error is None:
                await self._writable.wait()
                self._check_waiting()
        except trio.Cancelled:
            self.close()  # as in trio: a cancelled attempt cannot be resumed
            raise
        if self._connect_error:
            raise failure(self._connect_error)

    async def recv(self, buflen: int, flags: int = 0, /) -> bytes:
        """Receive at most `buflen` bytes, none at the remote end's FIN."""
        data = bytearray(buflen)
        count = await self.recv_into(data)
        return bytes(data[:count])

    async def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer; 0 at the remote end's FIN."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        view = memoryview(buffer).cast("B")[: nbytes or None]
        has_waited = False
        while (count := self.recv_nowait(view)) is None:
            await self._readable.wait()
            self._check_waiting()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return count

    async def send(self, data: Any, flags: int = 0, /) -> int:
        """Send some of the bytes; wait while the window is full."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        view = memoryview(data).cast("B")
        has_waited = False
        while not (count := self.send_nowait(view)):
            await self._writable.wait()
            self._check_waiting()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return count

    async def wait_writable(self) -> None:
        """Return at once: `send` does the waiting."""
        await trio.lowlevel.checkpoint()

    # ---- for the network ----------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether its process still holds it."""
        return not self._is_closed

    @property
    def is_whole(self) -> bool:
        """Whether it is connected, and neither closed nor reset."""
        return self.is_open and not self._is_reset and self.outgoing is not None

    def connected(self, outgoing: Pipe, incoming: Pipe) -> None:
        """The connection is established."""
        self.outgoing, self.incoming = outgoing, incoming
        self._connect_error = 0
        self._writable.wake()

    def connect_failed(self, number: int) -> None:
        """The connection failed with that error number."""
        self._connect_error = number
        self._writable.wake()

    def add_pending(self, connection: SimSocket) -> None:
        """An incoming connection is waiting to be accepted."""
        self.accepted.append(connection)
        self._readable.wake()

    def arrived(self, segment: Segment) -> None:
        """Receive the next segment (its bytes are already in the pipe)."""
        if segment is Flag.RST:
            self.reset()
        elif segment is Flag.FIN:
            self._has_ended = True
        self._wake_reader()

    def refuse(self) -> None:
        """A segment came for this closed socket: its machine answers with a reset."""
        self._network.refuse(self)

    def reset(self) -> None:
        """Reset the connection, both ways."""
        self._is_reset = True
        for pipe in (self.incoming, self.outgoing):
            if pipe is not None:
                pipe.drop()
        self._wake_reader()
        self._writable.wake()

    def may_send(self) -> None:
        """The remote end has read: the window may be open again."""
        self._writable.wake()

    def _wake_reader(self) -> None:
        self._readable.wake()
        if self.on_readable is not None:
            self.on_readable()

    def _check_open(self) -> None:
        if self._is_closed or not self.process.is_alive:
            raise failure(errno.EBADF)

    def _check_waiting(self) -> None:
        if self._is_closed or not self.process.is_alive:
            raise trio.ClosedResourceError("the socket was closed by another task")


FIRST_FREE_PORT = 49_152

Note = Callable[[str, str, int, int], None]
"""Called with (from, to, size or flag number, checksum) of each segment that arrives."""
_FLAG_NUMBERS = {Flag.FIN: -1, Flag.RST: -2}


class TcpLink(Link):
    """A link whose cuts hold what was sent, until they are healed."""

    __slots__ = ("_on_healed", "resets")

    def __init__(
        self,
        random: Callable[[], float],
        delay_ms: float,
        jitter_ms: float,
        on_healed: Callable[[TcpLink], None],
    ) -> None:
        super().__init__(random, delay_ms, jitter_ms)
        self._on_healed = on_healed
        self.resets = False
        """Whether the end of the next cut resets the connections that it held."""

    def remove_fault(self, fault: LinkFault) -> None:
        """End a fault on this link."""
        was_cut, mtu_bytes = self.is_cut, self.mtu_bytes
        super().remove_fault(fault)
        if not self.is_cut and (was_cut or self.mtu_bytes > mtu_bytes):
            self._on_healed(self)
            self.resets = False


class TcpNetwork(trio.abc.SocketFactory, trio.abc.HostnameResolver):
    """All hosts' sockets and the links between them. A host is named by a node's id.

    `link_times` returns a link's delay and jitter in milliseconds; `chopped` is the share of
    connections whose sockets sometimes take only the first bytes of what is sent, and return only
    the first of what came, as full buffers do. `report` is called for senders that do not continue
    correctly from there.
    """

    def __init__(
        self,
        clock: HeapClock,
        rngs: RandomStreams,
        link_times: Callable[[str, str], tuple[float, float]],
        note: Note,
        report: Callable[[Violated], None],
        chopped: float = 0.0,
    ) -> None:
        self.sent = 0
        self.lost = 0
        self._clock = clock
        self._rngs = rngs
        self._link_times = link_times
        self._note_segment = note
        self._chopped = chopped
        self.report = report
        """Called with violations of the connections' invariants."""
        self._links: dict[tuple[str, str], TcpLink] = {}
        self._hosts: dict[str, str] = {}  # by address
        self._without_power: dict[str, None] = {}
        self._listeners: dict[Address, SimSocket] = {}
        self._sockets: dict[int, SimSocket] = {}
        self._pairs: dict[int, SimSocket] = {}  # a connected socket's number: the other side
        self._of_closed: list[Pipe] = []
        """Outgoing pipes of closed sockets: a cut may hold their FIN, or a reset for a peer that
        still sends."""
        self._numbers = 0

    # ---- hosts and links ------------------------------------------------------------------

    def add_host(self, host: str, address: str) -> None:
        """Add a host to the network."""
        assert address not in self._hosts
        self._hosts[address] = host

    def link(self, source: str, target: str) -> TcpLink:
        """Return the link of an ordered pair of hosts."""
        found = self._links.get((source, target))
        if found is None:
            rng = self._rngs.stream(f"link/{source}/{target}")
            delay_ms, jitter_ms = self._link_times(source, target)
            found = TcpLink(rng.random, delay_ms, jitter_ms, self._on_healed)
            self._links[source, target] = found
        return found

    def _on_healed(self, link: TcpLink) -> None:
        """Deliver what a healed cut held, or reset its connections."""
        for number in sorted(self._sockets):
            sock = self._sockets.get(number)
            if sock is None:
                continue
            pipe = sock.outgoing
            if pipe is None or pipe.link is not link or not pipe.held:
                continue
            if link.resets:
                self._pairs[number].reset()
                sock.reset()
            else:
                pipe.release()
        for pipe in self._of_closed:
            if pipe.link is not link or not pipe.held:
                continue
            if link.resets:  # last data of a closed socket is lost with it
                pipe.drop()
                pipe.receiver.reset()
            else:
                pipe.release()

    def connections(self, source: str, target: str) -> list[tuple[SimSocket, SimSocket]]:
        """Return both ends of each live connection between two hosts, source's first."""
        ends = [
            (self._sockets[number], self._pairs.get(number)) for number in sorted(self._sockets)
        ]
        return [
            (near, far)
            for near, far in ends
            if far is not None
            and near.is_whole
            and far.is_whole
            and (near.process.host, far.process.host) == (source, target)
        ]

    def open_of(self, host: str) -> dict[str, int]:
        """Return how many open sockets a host's processes have, by remote end."""
        remotes = [sock.remote for sock in self._sockets.values() if sock.process.host == host]
        names = [
            "nowhere" if remote is None else f"{self._hosts.get(remote[0], remote[0])}:{remote[1]}"
            for remote in remotes
        ]
        return dict(Counter(names))

    def held(self, source: str, target: str) -> tuple[int, int]:
        """Return (bytes, connections) that a link holds now."""
        link = self.link(source, target)
        pipes = [sock.outgoing for sock in self._sockets.values()]
        held = [pipe for pipe in pipes if pipe is not None and pipe.link is link and pipe.held]
        return sum(pipe.held_bytes for pipe in held), len(held)

    def end_process(self, process: Process, *, loses_power: bool) -> None:
        """A process ended: its kernel closes its sockets, or its machine lost power as well."""
        if loses_power:
            self._without_power[process.host] = None
        for number in sorted(self._sockets):
            sock = self._sockets.get(number)
            if sock is not None and sock.process is process:
                if loses_power:
                    sock.vanish()
                else:
                    sock.close()

    def power_up(self, host: str) -> None:
        """The machine is up again, and answers segments of forgotten connections with resets."""
        self._without_power.pop(host, None)

    # ---- trio's hooks -----------------------------------------------------------------------

    def socket(
        self,
        family: int | None = None,
        type: int | None = None,  # noqa: A002 - trio's name
        proto: int | None = None,
    ) -> SimSocket:
        """Create a socket for the running task's process."""
        if family not in (None, socket.AF_INET):
            raise failure(errno.EAFNOSUPPORT)
        process = CURRENT.get()
        if not process.is_alive:
            raise failure(errno.EBADF)
        return self._new_socket(process)

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - trio's name
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        """Refuse: hosts are addressed by IP here, which needs no resolver."""
        raise socket.gaierror(socket.EAI_NONAME, f"no host {host!r} in the simulated network")

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """Refuse, like `getaddrinfo`."""
        raise socket.gaierror(socket.EAI_NONAME, f"no name for {sockaddr} here")

    # ---- for sockets ------------------------------------------------------------------------

    def free_address(self, process: Process, port: int) -> Address:
        """Return an address of the process's host, with a free port where `port` is 0."""
        address = (process.address, port or FIRST_FREE_PORT + self._numbers)
        if address in self._listeners:
            raise failure(errno.EADDRINUSE)
        return address

    def listen(self, sock: SimSocket) -> None:
        """Route connections to the socket's address to this socket."""
        self._listeners[sock.local] = sock

    def connect(self, sock: SimSocket) -> None:
        """Send a SYN, and repeat it until it is answered."""
        assert sock.remote is not None
        if not sock.local[1]:
            sock.local = self.free_address(sock.process, 0)
        self._send_syn(sock, 0)

    def forget(self, sock: SimSocket) -> None:
        """Remove a closed socket; its machine still sends what is in flight."""
        if self._sockets.pop(sock.number, None) is not None and sock.outgoing is not None:
            self._of_closed.append(sock.outgoing)
        if self._listeners.get(sock.local) is sock:
            del self._listeners[sock.local]

    def read(self, sock: SimSocket) -> None:
        """Bytes were read: the remote end may send more."""
        other = self._pairs.get(sock.number)
        if other is not None:
            other.may_send()

    def refuse(self, sock: SimSocket) -> None:
        """A segment came for a closed socket: a machine with power answers with a reset."""
        other = self._pairs[sock.number]
        if sock.process.host in self._without_power:
            # The remote end retransmits until the machine answers.
            self._clock.after(RETRANSMISSION_MS, self._refuse_again, sock)
        elif other.is_open and sock.outgoing is not None:
            sock.outgoing.send(Flag.RST)

    # ---- connections ------------------------------------------------------------------------

    def _refuse_again(self, sock: SimSocket) -> None:
        if self._pairs[sock.number].is_open:
            self.refuse(sock)

    def _new_socket(self, process: Process) -> SimSocket:
        self._numbers += 1
        sock = self._sockets[self._numbers] = SimSocket(self, process, self._numbers)
        return sock

    def _send_syn(self, sock: SimSocket, attempt: int) -> None:
        assert sock.remote is not None
        if not sock.is_open or sock.outgoing is not None:
            return
        target = self._hosts.get(sock.remote[0])
        if target is None:
            sock.connect_failed(errno.EHOSTUNREACH)
            return
        link = self.link(sock.process.host, target)
        if not link.is_cut and target not in self._without_power:
            self._clock.after(self._delay_ms(sock.process.host, target), self._on_syn, sock, target)
        self._clock.after(1000.0 * 2**attempt, self._send_syn, sock, attempt + 1)

    def _on_syn(self, sock: SimSocket, target: str) -> None:
        assert sock.remote is not None
        source = sock.process.host
        back = self.link(target, source)
        is_lost = back.is_cut or target in self._without_power
        if is_lost or not sock.is_open or sock.outgoing is not None:
            return
        listener = self._listeners.get(sock.remote)
        if listener is None:
            self._clock.after(self._delay_ms(target, source), self._on_refusal, sock)
            return
        if len(listener.accepted) >= BACKLOG_MAX:
            return
        served = self._new_socket(listener.process)
        served.local, served.remote = sock.remote, sock.local
        chops = self._chops(source, target)
        there = self._pipe(source, target, served, chops)
        back_pipe = self._pipe(target, source, sock, chops)
        self._pairs[served.number], self._pairs[sock.number] = sock, served
        served.connected(back_pipe, there)
        self._clock.after(self._delay_ms(target, source), self._on_accepted, sock, there, back_pipe)
        listener.add_pending(served)

    def _on_accepted(self, sock: SimSocket, outgoing: Pipe, incoming: Pipe) -> None:
        if sock.is_open:
            sock.connected(outgoing, incoming)
        else:
            outgoing.send(Flag.RST)

    def _on_refusal(self, sock: SimSocket) -> None:
        if sock.is_open and sock.outgoing is None:
            sock.connect_failed(errno.ECONNREFUSED)

    def _chops(self, source: str, target: str) -> Callable[[], float] | None:
        """Return the random numbers that chop a new connection's transfers, or None."""
        if not self._chopped:
            return None
        rng = self._rngs.stream(f"chops/{source}/{target}")
        return rng.random if rng.chance(self._chopped) else None

    def _pipe(
        self, source: str, target: str, receiver: SimSocket, chops: Callable[[], float] | None
    ) -> Pipe:
        # One stream for each direction of a pair of hosts is enough: an additional connection only
        # shifts the numbers of later ones on the same link.
        rng: RandomStream = self._rngs.stream(f"tcp/{source}/{target}")
        return Pipe(
            self._clock,
            self.link(source, target),
            rng.random,
            receiver,
            partial(self._note, source, target),
            chops,
        )

    def _note(self, source: str, target: str, segment: Segment) -> None:
        self.sent += 1
        if isinstance(segment, bytes):
            self._note_segment(source, target, len(segment), zlib.crc32(segment))
        else:
            self._note_segment(source, target, _FLAG_NUMBERS[segment], 0)

    def _delay_ms(self, source: str, target: str) -> float:
        """Return the delay of a handshake's segment."""
        link = self.link(source, target)
        rng = self._rngs.stream(f"tcp/{source}/{target}")
        return link.delay_ms + link.slow_ms + link.jitter_ms * rng.random()
