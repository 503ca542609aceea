"""Plays a generator without clients: what would be done when, if every operation took so long.

For tests of generators, and for whoever wants to see what one does before it shakes anything.

Source: jepsen.generator.test (simulate, quick, perfect).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.harness.generators.generator import Context, Due, Ended, Generator, Wait

AT_ONCE = 0
STEPS_MAX = 1_000_000
"""A generator that is still not through after so many questions never will be."""


@dataclass(frozen=True, slots=True)
class Played:
    """An operation as it was played: who did it, from when to when, and how it ended."""

    operation: Operation
    client: int
    call_ns: int
    return_ns: int
    outcome: str


Life = Callable[[Due], tuple[int, str, Answer]]
"""How long an operation takes (ns), how it ends, and with what answer."""


def well(due: Due) -> tuple[int, str, Answer]:
    """Let every operation take a millisecond, and be ok."""
    return 1_000_000, "ok", Answer()


@dataclass(slots=True)
class _Stage:
    clients: tuple[int, ...]
    life: Life
    free: list[int]
    now_ns: int = 0
    open: list[tuple[int, int, Due, str, Answer]] = field(default_factory=list)  # by their ends


def play(
    generator: Generator,
    clients: int | tuple[int, ...],
    life: Life = well,
    *,
    operations_max: int = 10_000,
    until_ns: int | None = None,
) -> list[Played]:
    """Return what a generator gives to so many clients (or to these), in the order of calls.

    Args:
        generator: what to play; it is not changed.
        clients: how many clients, numbered from 0, or their numbers.
        life: what becomes of each operation.
        operations_max: after so many operations the play is over.
        until_ns: nothing is begun at this time or later.
    """
    who = tuple(range(clients)) if isinstance(clients, int) else clients
    stage = _Stage(who, life, list(who))
    played: list[Played] = []
    for _ in range(STEPS_MAX):
        if len(played) >= operations_max:
            break
        wait = Wait()
        if stage.free:
            given = generator.ask(Context(stage.now_ns, tuple(stage.free), who))
            if given is None:
                break
            step, generator = given
            if isinstance(step, Due):
                assert step.client in stage.free, f"client {step.client} is busy"
                assert step.at_ns >= stage.now_ns, "nothing is due in the past"
                if until_ns is not None and step.at_ns >= until_ns:
                    stage.free.remove(step.client)  # it does nothing more
                else:
                    played.append(_begin(stage, step))
                continue
            wait = step
        if not stage.open and wait.until_ns is None:
            break  # all wait for each other
        generator = _go_on(stage, wait, generator)
        if until_ns is not None and stage.now_ns >= until_ns:
            break
    else:
        raise ValueError(f"the generator is not through after {STEPS_MAX} questions")
    return sorted(played, key=lambda one: one.call_ns)


def alone(generator: Generator, client: int) -> Iterator[Operation]:
    """Return what a generator gives one client that is alone and is answered ok at once."""
    now_ns = 0
    while (given := generator.ask(Context(now_ns, (client,), (client,)))) is not None:
        step, generator = given
        if isinstance(step, Due):
            now_ns = step.at_ns
            yield step.operation
            generator = generator.update(Ended(client, step.operation, "ok", Answer(), now_ns))
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
    """Let time pass to the next end, or to the end of the wait if that is sooner."""
    until_ns = wait.until_ns
    if not stage.open or (until_ns is not None and until_ns < stage.open[0][0]):
        assert until_ns is not None
        stage.now_ns = max(stage.now_ns, until_ns)
        return generator
    end_ns, client, due, outcome, answer = heappop(stage.open)
    stage.now_ns = max(stage.now_ns, end_ns)
    stage.free.append(client)
    return generator.update(Ended(client, due.operation, outcome, answer, end_ns))
