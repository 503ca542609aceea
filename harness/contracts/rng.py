"""Independent pseudo-random streams, all derived from one seed.

Each stream is named for its purpose. Leaving one out (a fault, a client, a jitter) does not change
any other stream, so schedules repeat and failing runs can be shrunk.

Source: Hypothesis' choice sequence; TigerBeetle's one seed, one universe.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from random import Random

SEED_BYTES = 4
"""Size of a seed generated for the user: short enough to retype."""


def rng_for(seed: str, *names: str | int) -> Random:
    """Return the random generator of the stream `names` under `seed`; the same in every process.

    The names are joined as JSON, so ("a", "b") and ("ab",) differ, as do 1 and "1".
    """
    key = json.dumps([seed, *names], ensure_ascii=True, separators=(",", ":"))
    return Random(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=32).digest(), "big"))


def new_seed() -> str:
    """Return a fresh seed for a campaign without one. The only randomness that is not seeded."""
    return secrets.token_hex(SEED_BYTES)
