"""What clients do, and when: small generators, put together in plain Python.

    generator = rate(
        100.0,
        phases(
            limit(1000, mix(append, read, seed="7")),
            sleep(5.0),
            each_client(lambda client: until_ok(repeat(Operation("end", "queue/0")))),
        ),
        seed="7",
    )

A generator is a value. It is asked with a context (what time it is, which clients are free) and
answers with the next operation, the client that is to do it and when, together with the generator
that goes on from there; or that there is nothing to do for now; or, for good, with None. How
operations ended is told to it by `update`. There is no clock and no die in it: time comes with
the context, what is drawn comes from the campaign's seed (`contracts.draw`), and whoever asks the
same generator twice is answered the same. So a generator can be played in a test
(`harness.generators.play`), drawn and shrunk by Hypothesis (`harness.testing.generators`), and
run by the client workers and by the simulated world alike.

Each worker process asks its own copy for its own clients: `phases` and `per_key` bring together
the clients of one worker, and what a generator counts (`limit`) it counts for one worker.

Source: jepsen.generator and jepsen.independent.
"""

from shaketable.harness.generators.choices import any_of, mix, until_ok
from shaketable.harness.generators.clients import (
    KeySpread,
    each_client,
    on_clients,
    per_key,
    reserve,
    side_by_side,
    width_of,
)
from shaketable.harness.generators.generator import (
    NOTHING_NOW,
    Context,
    Due,
    Ended,
    Generator,
    Given,
    Wait,
)
from shaketable.harness.generators.pace import delay, rate, sleep, stagger, think_time, time_limit
from shaketable.harness.generators.play import Played, alone, play
from shaketable.harness.generators.sequences import (
    Lazy,
    concat,
    limit,
    once,
    operations,
    phases,
    repeat,
    synchronize,
)

__all__ = [
    "NOTHING_NOW",
    "Context",
    "Due",
    "Ended",
    "Generator",
    "Given",
    "KeySpread",
    "Lazy",
    "Played",
    "Wait",
    "alone",
    "any_of",
    "concat",
    "delay",
    "each_client",
    "limit",
    "mix",
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
