"""The simulated network: what each fault makes of a link, and that links are independent."""

from __future__ import annotations

from shaketable.system.raft.protocol import LeadershipTransfer
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.network import Network
from shaketable.system.sim.schedules.faults import Cut, Duplicate, LossyLink, Reorder, SlowLink
from shaketable.system.sim.schedules.random_streams import RandomStreams

COUNT = 400
WHEN = {"start_ms": 0, "duration_ms": 1, "links": ()}


class Wire:
    """A network of two links with a message a millisecond; `got` lists what arrived, and when."""

    def __init__(self, *faults, seed: int = 1) -> None:
        self.heap = EventHeap()
        self.got: list[tuple[float, int]] = []
        self.network = Network(self.heap, RandomStreams(seed), self.deliver, 1.0, 3.0)
        for fault in faults:
            self.network.link("a", "b").add_fault(fault)
        for number in range(COUNT):
            self.heap.push(float(number), self.send, number)
        self.run()

    def send(self, number: int) -> None:
        self.network.send("a", "b", LeadershipTransfer(number, "a"))

    def deliver(self, source, target, message) -> None:
        assert (source, target) == ("a", "b")
        self.got.append((self.heap.now_ms, message.term))

    def run(self) -> None:
        while event := self.heap.pop(1e9):
            action, args = event
            action(*args)

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.got]

    @property
    def delays(self) -> list[float]:
        return [at_ms - number for at_ms, number in self.got]


def test_a_good_link_delivers_once_in_order_after_a_delay():
    wire = Wire()
    assert wire.numbers == list(range(COUNT))
    assert all(1.0 <= delay <= 4.0 for delay in wire.delays)
    assert max(wire.delays) - min(wire.delays) > 1.0


def test_a_cut_lets_nothing_through_in_its_direction():
    wire = Wire(Cut(**WHEN))
    assert wire.got == []
    assert wire.network.lost == COUNT
    back = wire.network.link("b", "a")
    assert not back.is_cut


def test_what_was_sent_before_a_cut_arrives():
    wire = Wire()
    wire.got.clear()
    fault = Cut(**WHEN)
    wire.send(1)
    wire.network.link("a", "b").add_fault(fault)
    wire.send(2)
    wire.run()
    assert wire.numbers == [1]
    wire.network.link("a", "b").remove_fault(fault)
    wire.send(3)
    wire.run()
    assert wire.numbers == [1, 3]


def test_loss_duplication_and_delay():
    lossy = Wire(LossyLink(**WHEN, probability=0.25))
    assert COUNT * 0.6 < len(lossy.got) < COUNT * 0.9
    assert len(lossy.got) + lossy.network.lost == COUNT
    double = Wire(Duplicate(**WHEN, probability=0.5))
    assert COUNT * 1.3 < len(double.got) < COUNT * 1.7
    assert set(double.numbers) == set(range(COUNT))
    slow = Wire(SlowLink(**WHEN, delay_ms=50.0))
    assert min(slow.delays) >= 51.0
    assert slow.numbers == list(range(COUNT))


def test_reordering_lets_others_overtake():
    wire = Wire(Reorder(**WHEN, probability=0.2, delay_ms=40.0))
    assert sorted(wire.numbers) == list(range(COUNT))
    assert wire.numbers != list(range(COUNT))
    assert max(wire.delays) > 20.0


def test_faults_on_a_link_add_up_and_end_one_by_one():
    network = Network(EventHeap(), RandomStreams(1), lambda *_: None, 1.0, 1.0)
    link = network.link("a", "b")
    slow, slower = SlowLink(**WHEN, delay_ms=5.0), SlowLink(**WHEN, delay_ms=7.0)
    link.add_fault(slow)
    link.add_fault(slower)
    assert link.slow_ms == 12.0
    link.remove_fault(slow)
    assert (link.slow_ms, link.is_wrong) == (7.0, True)
    link.remove_fault(slower)
    assert (link.slow_ms, link.is_wrong) == (0.0, False)


def test_a_link_draws_for_itself_alone():
    quiet, busy = Wire(), Wire()
    for wire, chatter in ((quiet, 0), (busy, 50)):
        for _ in range(chatter):
            wire.network.link("b", "a").arrivals(0.0)
        wire.got.clear()
        wire.send(7)
        wire.run()
    assert quiet.delays == busy.delays
