"""Generators: what clients do, and when. Small ones are combined in plain Python.

    generator = rate(
        100.0,
        phases(
            limit(1000, mix(append, read, seed="7")),
            sleep(5.0),
            each_client(lambda client: until_ok(repeat(Operation("end", "queue/0")))),
        ),
        seed="7",
    )

A generator is an immutable value. `next_op` gets a context (the time, the free clients) and returns
the next operation with its client and its time, or `Wait`, together with the generator that
follows; or None when it is exhausted. `update` tells it how an operation completed. It holds no
clock and no random state: time comes with the context, and random choices derive from the
campaign's seed (`contracts.rng`), so the same call has the same answer. That is why a generator can
be played in a test (`harness.generators.generator`), generated and shrunk by Hypothesis
(`harness.testing.generators`), and run by the client workers and by the simulated world alike.

Each worker process has its own copy for its own clients: `phases` and `per_key` synchronize the
clients of one worker, and `limit` counts the operations of one worker.

Source: jepsen.generator and jepsen.independent.
"""

from shaketable.harness.generators.clients import (
    GeneratedWorkload,
    KeySpread,
    each_client,
    number_of_keys,
    on_clients,
    per_key,
    reserve,
    side_by_side,
    width_of,
)
from shaketable.harness.generators.generator import (
    PENDING,
    Completion,
    Context,
    Due,
    Generator,
    Lazy,
    NextOp,
    Played,
    Wait,
    alone,
    any_of,
    concat,
    delay,
    limit,
    mix,
    once,
    operations,
    phases,
    play,
    rate,
    repeat,
    sleep,
    stagger,
    synchronize,
    think_time,
    time_limit,
    until_ok,
)

__all__ = [
    "PENDING",
    "Completion",
    "Context",
    "Due",
    "GeneratedWorkload",
    "Generator",
    "KeySpread",
    "Lazy",
    "NextOp",
    "Played",
    "Wait",
    "alone",
    "any_of",
    "concat",
    "delay",
    "each_client",
    "limit",
    "mix",
    "number_of_keys",
    "on_clients",
    "once",
    "operations",
    "per_key",
    "phases",
    "play",
    "rate",
    "repeat",
    "reserve",
    "side_by_side",
    "sleep",
    "stagger",
    "synchronize",
    "think_time",
    "time_limit",
    "until_ok",
    "width_of",
]
