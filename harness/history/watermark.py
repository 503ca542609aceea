"""How far the recordings of a running campaign had come, noted about twice a second.

A harness that is killed leaves no counts of events. What it had noted last tells a
recording that merely ends with the kill from one that was cut or lost afterwards.
"""

from __future__ import annotations

import msgspec

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.run_folder import RunFolder, write_atomically


def note(folder: RunFolder) -> None:
    """Write the sizes of all segments to recorded.json.

    Raises:
        HarnessError: it cannot be written.
    """
    sizes = {path.name: path.stat().st_size for path in sorted(folder.segments.glob("*.seg"))}
    write_atomically(folder.recorded_json, msgspec.json.encode(sizes))


def read(folder: RunFolder) -> dict[str, int] | None:
    """Return the sizes noted last, in bytes by file name; None if nothing was noted.

    Raises:
        HarnessError: the note is there and cannot be read.
    """
    try:
        return msgspec.json.decode(folder.recorded_json.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"cannot read {folder.recorded_json}: {error}") from error
