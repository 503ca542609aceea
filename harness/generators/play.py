"""Play a generator without clients: what would be done when, for given operation times.

For tests of generators, and to preview one before a campaign.

Source: jepsen.generator.test (simulate, quick, perfect).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.harness.generators.generator import Completion, Context, Due, Generator, Wait

AT_ONCE = 0
STEPS_MAX = 1_000_000
"""A generator that has not ended after so many steps is taken to be endless."""


@dataclass(frozen=True, slots=True)
class Played:
    """An operation as played: its client, from when to when, and its outcome."""

    operation: Operation
    client: int
    call_ns: int
    return_ns: int
    outcome: str


Life = Callable[[Due], tuple[int, str, Answer]]
"""How long an operation takes (ns), its outcome, and its answer."""


def well(due: Due) -> tuple[int, str, Answer]:
    """Let every operation take 1 ms and be ok."""
    return 1_000_000, "ok", Answer()


@dataclass(slots=True)
class _Stage:
    clients: tuple[int, ...]
    life: Life
    free: list[int]
    now_ns: int = 0
    open: list[tuple[int, int, Due, str, Answer]] = field(default_factory=list)  # a heap, by end


def play(
    generator: Generator,
    clients: int | tuple[int, ...],
    life: Life = well,
    *,
    operations_max: int = 10_000,
    until_ns: int | None = None,
) -> list[Played]:
    """Return the operations that a generator gives these clients, in the order of their calls.

    Args:
        generator: what to play; it is not changed.
        clients: number of clients, numbered from 0, or their numbers.
        life: how each operation goes.
        operations_max: stop after this many operations.
        until_ns: start nothing at this time or later.
    """
    who = tuple(range(clients)) if isinstance(clients, int) else clients
    stage = _Stage(who, life, list(who))
    played: list[Played] = []
    for _ in range(STEPS_MAX):
        if len(played) >= operations_max:
            break
        wait = Wait()
        if stage.free:
            given = generator.next_op(Context(stage.now_ns, tuple(stage.free), who))
            if given is None:
                break
            step, generator = given
            if isinstance(step, Due):
                assert step.client in stage.free, f"client {step.client} is busy"
                assert step.at_ns >= stage.now_ns, "nothing is due in the past"
                if until_ns is not None and step.at_ns >= until_ns:
                    stage.free.remove(step.client)  # this client is done
                else:
                    played.append(_begin(stage, step))
                continue
            wait = step
        if not stage.open and wait.until_ns is None:
            break  # deadlock: every client waits for another
        generator = _go_on(stage, wait, generator)
        if until_ns is not None and stage.now_ns >= until_ns:
            break
    else:
        raise ValueError(f"the generator is not through after {STEPS_MAX} questions")
    return sorted(played, key=lambda one: one.call_ns)


def alone(generator: Generator, client: int) -> Iterator[Operation]:
    """Return the operations of a single client whose every operation is ok at once."""
    now_ns = 0
    while (given := generator.next_op(Context(now_ns, (client,), (client,)))) is not None:
        step, generator = given
        if isinstance(step, Due):
            now_ns = step.at_ns
            yield step.operation
            generator = generator.update(Completion(client, step.operation, "ok", Answer(), now_ns))
        elif step.until_ns is None:
            return
        else:
            now_ns = max(now_ns, step.until_ns)


def _begin(stage: _Stage, due: Due) -> Played:
    took_ns, outcome, answer = stage.life(due)
    stage.free.remove(due.client)
    end_ns = due.at_ns + took_ns
    heappush(stage.open, (end_ns, due.client, due, outcome, answer))
    return Played(due.operation, due.client, due.at_ns, end_ns, outcome)


def _go_on(stage: _Stage, wait: Wait, generator: Generator) -> Generator:
    """Advance time to the next completion, or to the end of the wait if that is sooner."""
    until_ns = wait.until_ns
    if not stage.open or (until_ns is not None and until_ns < stage.open[0][0]):
        assert until_ns is not None
        stage.now_ns = max(stage.now_ns, until_ns)
        return generator
    end_ns, client, due, outcome, answer = heappop(stage.open)
    stage.now_ns = max(stage.now_ns, end_ns)
    stage.free.append(client)
    return generator.update(Completion(client, due.operation, outcome, answer, end_ns))
