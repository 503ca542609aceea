"""What each world offers, word by word, and why it lacks what it lacks.

An answer is None (the world has that word), a reason in a few words, or a question that is put to
the target and the campaign's options. What a world's table does not name it lacks.

Source: DESIGN.md decision 8 (what a world cannot do is listed, never skipped in silence).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.plugins import Json, Target
from harness.words import Word

Question = Callable[[Target, Json], str | None]
"""Asked where it depends on the target or the campaign: None if it can, else why not."""
Offer = str | Question | None

STREAM_LOSES_NOTHING = "a TCP stream between proxies loses nothing: packets are those of netns, sim"
NOT_SIMULATED = "a simulated process has none of its own"

_EVERYWHERE: Mapping[Word, Offer] = dict.fromkeys((Word.KILL, Word.PAUSE, Word.CUT, Word.TRANSFER))
"""The methods that `World` itself has, in each world."""

PROCESS: Mapping[Word, Offer] = {
    **_EVERYWHERE,
    **dict.fromkeys((Word.WIPE, Word.DELAY, Word.RATE, Word.RESET, Word.HALF_OPEN)),
    Word.LOSS: STREAM_LOSES_NOTHING,
    Word.DUPLICATE: STREAM_LOSES_NOTHING,
    Word.REORDER: STREAM_LOSES_NOTHING,
    Word.CORRUPT: STREAM_LOSES_NOTHING,
}
SIM: Mapping[Word, Offer] = {
    **_EVERYWHERE,
    Word.WIPE: "simulated disks are never lost",
    Word.MEMORY: NOT_SIMULATED,
    Word.DESCRIPTORS: NOT_SIMULATED,
}
NETNS: Mapping[Word, Offer] = {**_EVERYWHERE, Word.WIPE: None}

WORLDS: Mapping[str, Mapping[Word, Offer]] = {"process": PROCESS, "netns": NETNS, "sim": SIM}


def why_not(world: str, word: Word, target: Target, options: Json) -> str | None:
    """Say why a world cannot do that to such a target; None if it can.

    Args:
        world: its name, as the campaign gives it.
        word: what is to be done.
        target: what it is to be done to.
        options: what the campaign tells its faults (`harness.campaign.fault_options`).
    """
    offer = WORLDS[world].get(word, f"{word} is not one of its words")
    if callable(offer):
        return offer(target, options)
    return None if offer is None else f"world {world} cannot do it: {offer}"
