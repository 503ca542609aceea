"""Steers a node from outside: its clocks, its disk faults and its trips.

`shaketableSteering` names a folder. A thread polls its `control.json` every `POLL_S`, so orders
take effect even while the node recovers or its disk hangs. What happened is counted in the file
`effects` (docs/faults.md). Without that key a node has none of this.

Source: DESIGN.md decision 9.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import trio

from shaketable.system.node.steered.clock import SteeredClock
from shaketable.system.node.steered.disk import MESSAGES, DiskFaults, EffectCounters, SteeredDisk
from shaketable.system.node.steered.orders import FILE_NAME, Orders, TripOrder, read_orders
from shaketable.system.raft.protocol import Message
from shaketable.system.store.disk import Disk

POLL_S = 0.01
"""How often orders are polled and clock readings are written."""
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

log = logging.getLogger("shaketable.node")


class Steering:
    """One node's steering folder, and the parts of the node that follow its orders.

    Attributes:
        clock: the node's clock.
    """

    def __init__(self, folder: Path) -> None:
        """Read the current orders. Raises OSError or ValueError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = SteeredClock(lambda: time.monotonic_ns() / 1e6, lambda: time.time_ns() / 1e6)
        self._control = folder / FILE_NAME
        self._effects = EffectCounters(folder)
        self._disk_faults = DiskFaults(self._effects)
        self._trips: tuple[TripOrder, ...] = ()
        self._tripped: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._poll()
        self._write_reading()

    def disk(self, disk: Disk) -> SteeredDisk:
        """Return a disk that follows the orders, over another one."""
        return SteeredDisk(disk, self._before_disk_call)

    def set_unsynced(self, held_bytes: int) -> None:
        """Set how many bytes a kill at this moment would lose."""
        self._effects.set(unsynced_bytes=held_bytes)

    def on_message(self, message: Message) -> None:
        """Count a message to another member, before it is sent."""
        self._event("message")
        kind = type(message).__name__
        if kind in MESSAGES:
            self._event(f"message:{kind}")

    def start(self) -> None:
        """Start polling the orders, in a daemon thread."""
        threading.Thread(target=self._watch, name="steering", daemon=True).start()

    async def steer(self) -> None:
        """Let the node's timers follow its clock, until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        self.clock.rearm()
        try:
            await trio.sleep_forever()
        finally:
            self._token = None

    # ---- orders -----------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            is_new = False
            try:
                is_new = self._poll()
            except (OSError, ValueError) as error:
                log.warning("event=bad_orders error=%s", error)
            if is_new or self.clock.is_strobing:
                self._rearm()
            self._write_reading()

    def _poll(self) -> bool:
        """Apply the orders if the file changed; return whether it did.

        Raises OSError or ValueError.
        """
        try:
            found = self._control.stat()
        except FileNotFoundError:
            return False
        seen = found.st_ino, found.st_mtime_ns
        if seen == self._seen:
            return False
        self._seen = seen
        self._follow(read_orders(self._control.read_bytes()))
        return True

    def _follow(self, orders: Orders) -> None:
        self.clock.follow(orders.clocks)
        with self._lock:
            self._trips = tuple(each for each in orders.trips if each.pid in (0, os.getpid()))
            for number in set(self._tripped) - {trip.number for trip in orders.trips}:
                del self._tripped[number]
        self._disk_faults.follow(orders.disk_faults)
        self._effects.set(control_version=orders.version)
        log.info(
            "event=orders version=%d clocks=%d disk_faults=%d trips=%d",
            orders.version,
            len(orders.clocks),
            len(orders.disk_faults),
            len(self._trips),
        )

    def _rearm(self) -> None:
        token = self._token
        if token is not None:
            try:
                token.run_sync_soon(self.clock.rearm, idempotent=True)
            except trio.RunFinishedError:
                self._token = None

    def _write_reading(self) -> None:
        """Write the node's and the machine's clocks, read at the same instant, for the harness."""
        effects, clock = self._effects, self.clock
        machine_us, machine_wall_us = time.monotonic_ns() // 1000, time.time_ns() // 1000
        node_us, node_wall_us = round(clock.now_ms() * 1000), round(clock.exact_wall_ms() * 1000)
        with effects.reading():
            effects.set(
                machine_mono_us=machine_us,
                node_mono_us=node_us,
                machine_wall_us=machine_wall_us,
                node_wall_us=node_wall_us,
            )

    # ---- events -----------------------------------------------------------------------

    def _before_disk_call(self, kind: str, path: str) -> None:
        """Count a disk call and inject the faults that apply to it. Raises StoreError."""
        self._event(kind)
        self._disk_faults.inject(kind, path)

    def _event(self, kind: str) -> None:
        self._effects.count(kind)
        if self._trips:
            self._trip(kind)

    def _trip(self, kind: str) -> None:
        with self._lock:
            due = [trip for trip in self._trips if trip.on == kind]
            for trip in due:
                self._tripped[trip.number] += 1
            met = [trip for trip in due if self._tripped[trip.number] == max(trip.nth, 1)]
        for trip in met:
            log.warning("event=trip on=%s nth=%d what=%s", trip.on, trip.nth, trip.what)
            os.kill(os.getpid(), _SIGNALS[trip.what])
