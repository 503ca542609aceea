"""Which packet faults work between network namespaces on this machine, found by trying them.

`python -m shaketable.harness.network.probe`, in a namespace of its own (`harness.namespaces`),
connects two nodes, tries each capability on their traffic, measures the effect at both ends, and
prints {capability: {"works", "what"}} as JSON. `probed` runs such a process, once.

Source: HARNESSES.md section 6 (probe each by doing it, never by looking for a binary).
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import Final, NamedTuple

from shaketable.harness import namespaces
from shaketable.harness.contracts.capabilities import Capability, LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.network.netns import PacketNetwork, node_address
from shaketable.harness.run_markers import scratch_prefix

CAPABILITIES: Final = (
    Capability.CUT,
    Capability.DELAY,
    Capability.LOSS,
    Capability.RATE,
    Capability.MTU,
    Capability.RESET,
    Capability.HALF_OPEN,
    Capability.DUPLICATE,
    Capability.REORDER,
    Capability.CORRUPT,
)
PROBE_TIMEOUT_S: Final = 60.0
ANSWER_S: Final = 2.0
"""How long to wait for something that must arrive."""
LAST: Final = -1
"""The number of the datagram that is sent after all others."""
POLL_S: Final = 0.005
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("qq")
DATAGRAMS: Final = 60
DELAY_MS: Final = 40.0
RATE_BYTES_S: Final = 100_000.0
AB: Final = (("a", "b"),)
HELP: Final = "be root, or let users make namespaces (sysctl user.max_user_namespaces)"


@dataclass(frozen=True, slots=True)
class Probed:
    """Whether a capability works here, and what was measured, or why not."""

    works: bool
    what: str


@cache
def probed() -> Mapping[Capability, Probed]:
    """Try every capability in a scratch namespace. Takes two seconds, once; leaves nothing."""
    program = [sys.executable, "-P", "-m", "shaketable.harness.network.probe"]
    try:
        done = subprocess.run(
            namespaces.new(program),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return dict.fromkeys(CAPABILITIES, Probed(False, f"the probe failed: {error}"))
    if done.returncode != 0:
        message = done.stderr.strip().rpartition("\n")[2] or f"the probe ended: {done.returncode}"
        return dict.fromkeys(CAPABILITIES, Probed(False, message))
    return {
        Capability(capability): Probed(**found)
        for capability, found in json.loads(done.stdout).items()
    }


@cache
def why_no_namespace() -> str | None:
    """Try to make a network namespace; return why that fails, None if it works."""
    done = subprocess.run(namespaces.new(["true"]), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return f"{done.stderr.strip() or 'no network namespace'}; {HELP}"


class Datagram(NamedTuple):
    """One that has arrived, with the times of both ends in nanoseconds since 1970."""

    number: int
    sent_ns: int
    came_ns: int


class Wire:
    """Two nodes, and the datagrams and connections from a to b, as their own sockets see them."""

    def __init__(self, network: PacketNetwork) -> None:
        self.network = network
        with self._inside("a"):
            self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with self._inside("b"):
            self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._in.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._in.bind((node_address(1), 0))
            self._door = socket.create_server((node_address(1), 0))

    def send(self, count: int = DATAGRAMS, size: int = 100) -> None:
        """Send that many datagrams, each with its number and time."""
        for number in range(count):
            text = f"{number} {time_ns()} ".encode()
            self._out.sendto(text.ljust(size, b"."), self._in.getsockname())

    def receive(self, expected: int = 0) -> list[Datagram]:
        """Return the datagrams that have arrived. Call it when no fault is in force.

        Returns when a datagram sent now has arrived and as many others as expected.
        """
        came: list[Datagram] = []
        is_last = False
        self._out.sendto(f"{LAST} {time_ns()} ".encode(), self._in.getsockname())
        while not is_last or len(came) < expected:
            if not select.select([self._in], [], [], ANSWER_S)[0]:
                break
            data, ancillary, _, _ = self._in.recvmsg(2048, socket.CMSG_SPACE(_TIMESPEC.size))
            # the kernel's receive timestamp
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
            number, sent_ns, _ = data.split(b" ", 2)
            if int(number) == LAST:
                is_last = True
            else:
                came.append(Datagram(int(number), int(sent_ns), seconds * 10**9 + nanoseconds))
        return came

    @contextmanager
    def shaped(self, shape: LinkShape) -> Iterator[str]:
        """Shape the link within the body of `with`."""
        name = self.network.shape(AB, shape)
        try:
            yield name
        finally:
            self.network.unshape(name)

    def until(self, shape: str, counted: str, count: int = DATAGRAMS) -> None:
        """Wait until the switch has counted that many, at most `ANSWER_S`."""
        end_s = monotonic() + ANSWER_S
        while self.network.shaped(shape)[counted] < count and monotonic() < end_s:
            sleep(POLL_S)

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """Connect a to b and send some bytes, so that the switch knows the connection."""
        with self._inside("a"):
            near = socket.create_connection(self._door.getsockname(), ANSWER_S)
        far, _ = self._door.accept()
        far.settimeout(ANSWER_S)
        near.sendall(b"hello")
        far.recv(5)
        return near, far

    @contextmanager
    def _inside(self, node: str) -> Iterator[None]:
        """Enter a node's namespace within the body of `with`: sockets stay where they were made."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(self.network.namespace(node), os.O_RDONLY)
        namespaces.setns(there)
        try:
            yield
        finally:
            namespaces.setns(home)
            os.close(there)
            os.close(home)


def _cut(wire: Wire) -> Probed:
    cut = wire.network.cut(AB)
    wire.send()
    end_s = monotonic() + ANSWER_S
    while (dropped := wire.network.held(cut)["packets"]) < DATAGRAMS and monotonic() < end_s:
        sleep(POLL_S)
    wire.network.heal(cut, "deliver")
    under = len(wire.receive())
    wire.send()
    after = len(wire.receive())
    works = under == 0 and dropped == after == DATAGRAMS
    return Probed(works, f"{under} of {DATAGRAMS} came while it was cut, {after} after")


def _delay(wire: Wire) -> Probed:
    with wire.shaped(LinkShape(delay_ms=DELAY_MS)) as shape:
        wire.send(5)
        wire.until(shape, "packets", 5)
    came = wire.receive(5)
    least_ms = min((each.came_ns - each.sent_ns for each in came), default=0) / 1e6
    return Probed(len(came) == 5 and least_ms >= DELAY_MS, f"{least_ms:.1f} ms of {DELAY_MS:g}")


def _loss(wire: Wire) -> Probed:
    with wire.shaped(LinkShape(loss=0.5)) as shape:
        wire.send()
        wire.until(shape, "packets")
    lost = DATAGRAMS - len(wire.receive())
    return Probed(0 < lost < DATAGRAMS, f"{lost} of {DATAGRAMS} lost, requested half")


def _duplicate(wire: Wire) -> Probed:
    with wire.shaped(LinkShape(duplicate=0.5)) as shape:
        wire.send()
        wire.until(shape, "packets")
    came = len(wire.receive())
    return Probed(came > DATAGRAMS, f"{came} came of {DATAGRAMS}, requested half of them twice")


def _reorder(wire: Wire) -> Probed:
    with wire.shaped(LinkShape(reorder=0.3)) as shape:
        wire.send()
        wire.until(shape, "packets")
    order = [each.number for each in wire.receive(DATAGRAMS)]
    behind = sum(later < before for before, later in itertools.pairwise(order))
    works = behind > 0 and sorted(order) == list(range(DATAGRAMS))
    return Probed(works, f"{behind} of {DATAGRAMS} were reordered")


def _corrupt(wire: Wire) -> Probed:
    with wire.shaped(LinkShape(corrupt=0.5)) as shape:
        wire.send()
        wire.until(shape, "packets")
        changed = wire.network.shaped(shape)["corrupted"]
    came = len(wire.receive())
    works = 0 < changed == DATAGRAMS - came
    return Probed(works, f"{changed} changed, {DATAGRAMS - came} refused by their checksum")


def _rate(wire: Wire) -> Probed:
    size, count = 1000, DATAGRAMS // 2
    with wire.shaped(LinkShape(rate_bytes_s=RATE_BYTES_S)) as shape:
        wire.send(count, size)
        wire.until(shape, "packets", count)
    came = wire.receive()
    # From the first on: on a busy machine later ones may be sent when those before are through.
    began_ns = min((each.sent_ns for each in came), default=0)
    took_ns = max((each.came_ns for each in came), default=0) - began_ns
    rate = len(came) * size / took_ns * 1e9 if took_ns else 0.0
    works = len(came) == count and 0 < rate <= RATE_BYTES_S
    return Probed(works, f"{rate / 1e3:.0f} kB/s of {RATE_BYTES_S / 1e3:g}")


def _mtu(wire: Wire) -> Probed:
    with wire.shaped(LinkShape(mtu_bytes=600.0)) as shape:
        wire.send(DATAGRAMS // 2, 100)
        wire.send(DATAGRAMS // 2, 1000)
        wire.until(shape, "packets")
        dropped = wire.network.shaped(shape)["dropped"]
    came = len(wire.receive())
    works = dropped == DATAGRAMS // 2 == came
    return Probed(works, f"{dropped} large ones dropped, {came} small ones came")


def _reset(wire: Wire) -> Probed:
    near, far = wire.connection()
    with near, far, wire.shaped(LinkShape(reset_every_ms=3_600_000)):
        both = _is_reset(near), _is_reset(far)
    return Probed(all(both), f"{sum(both)} of 2 sides saw a reset")


def _half_open(wire: Wire) -> Probed:
    near, far = wire.connection()
    with near, far:
        with wire.shaped(LinkShape(half_open=True)) as shape:
            is_gone = _is_reset(far)
            near.sendall(b"is this heard?")
            wire.until(shape, "unread", 1)
            unread = wire.network.shaped(shape)["unread"]
            is_told = bool(select.select([near], [], [], 0)[0])
        with suppress(OSError):
            near.sendall(b"and now?")
        is_told_later = _is_reset(near)
    works = is_gone and not is_told and unread > 0 and is_told_later
    return Probed(works, f"one side reset; {unread} bytes of the other went into nothing")


def _is_reset(side: socket.socket) -> bool:
    side.settimeout(ANSWER_S)
    try:
        side.recv(100)
    except ConnectionResetError:
        return True
    except OSError:
        pass
    return False


TRIALS: Final[Mapping[Capability, Callable[[Wire], Probed]]] = {
    Capability.CUT: _cut,
    Capability.DELAY: _delay,
    Capability.LOSS: _loss,
    Capability.RATE: _rate,
    Capability.MTU: _mtu,
    Capability.RESET: _reset,
    Capability.HALF_OPEN: _half_open,
    Capability.DUPLICATE: _duplicate,
    Capability.REORDER: _reorder,
    Capability.CORRUPT: _corrupt,
}


def main() -> int:
    """Try all capabilities; print the results."""
    found: dict[str, Probed] = {}
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("probe")) as folder:
        try:
            network = PacketNetwork(("a", "b"), Path(folder) / "switch.log")
        except HarnessError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        try:
            wire = Wire(network)
            for capability, trial in TRIALS.items():
                try:
                    found[capability] = trial(wire)
                except (OSError, HarnessError) as error:
                    found[capability] = Probed(False, f"{type(error).__name__}: {error}")
        finally:
            network.close()
    sys.stdout.write(json.dumps({capability: asdict(one) for capability, one in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
