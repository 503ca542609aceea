"""Independent streams of pseudo-randomness, all drawn from one printed seed.

Every draw of a campaign names what it is for, so that leaving one out (a fault, a
client, a jitter) shifts no other: that is what makes a schedule repeatable and a
failing run shrinkable.

Source: Hypothesis' choice sequence; TigerBeetle's one seed, one universe.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from random import Random

SEED_BYTES = 4
"""Size of a seed drawn for the user: short enough to be typed again."""


def draw(seed: str, *names: str | int) -> Random:
    """Return the stream that `names` own under `seed`: the same in every process.

    The names are joined as JSON, so that ("a", "b") and ("ab",) differ, as do 1 and "1".
    """
    key = json.dumps([seed, *names], ensure_ascii=True, separators=(",", ":"))
    return Random(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=32).digest(), "big"))


def new_seed() -> str:
    """Return a fresh seed, for a campaign that names none. The only draw not from a seed."""
    return secrets.token_hex(SEED_BYTES)
