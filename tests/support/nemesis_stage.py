"""A stage for the nemesis: faults on a world in memory, on virtual time, and what was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import trio
import trio.testing
from memory_world import MemoryWorld

from shaketable.harness.campaigns.schedule import Planned
from shaketable.harness.faults import network, process
from shaketable.harness.runtime.ledger import Ledger
from shaketable.harness.runtime.nemesis import Nemesis
from shaketable.harness.runtime.observer import SilentObserver

NODES = ("n0", "n1", "n2")


@dataclass
class Stage:
    path: object
    world: MemoryWorld = field(default_factory=lambda: MemoryWorld(NODES, "n0"))
    events: list = field(default_factory=list)
    faults: dict = field(
        default_factory=lambda: {
            "kill": process.KILL, "pause": process.PAUSE, "partition": network.PARTITION,
        }
    )  # fmt: skip
    notes: list = field(default_factory=list)
    now_ns: object = field(default=lambda: 0)
    budget: object = None

    def nemesis(self) -> Nemesis:
        stage = self

        class Notes(SilentObserver):
            def note(self, line):
                stage.notes.append(line)

        def record(f, value):
            self.events.append((round(trio.current_time() - self.began, 6), f, value))

        self.began = trio.current_time()
        self.ledger = Ledger(self.path, lambda: 0)
        notes = Notes()
        return Nemesis(
            self.faults, self.world, self.ledger, record, notes, self.now_ns, self.budget
        )

    def run(self, planned, until=None, room_s=math.inf):
        async def main():
            nemesis = self.made = self.nemesis()
            with trio.move_on_after(until if until is not None else 1e9):
                await nemesis.run(planned, room_s)
            self.ended = trio.current_time() - self.began
            self.ledger.close()
            return nemesis.tally

        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    def told(self):
        return [(at, f, value["fault"], value["phase"]) for at, f, value in self.events]


def planned(number, fault, start_s, duration_s, **plan):
    order = list(NODES)
    leader = {"variant": "leader", "order": order}
    isolate = {"shape": "isolate-leader", "order": order, "heal": "reset"}
    faults = {"kill": leader, "pause": leader, "partition": isolate}
    drawn = {**faults.get(fault, {}), **plan}
    return Planned(number=number, fault=fault, plan=drawn, start_s=start_s, duration_s=duration_s)
