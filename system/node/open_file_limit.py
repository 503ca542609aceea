"""How many files the process may hold open, and how many clients fit beside the store's.

A client's connection is an open file as well. Where clients took them all, the next file of the
store could not be opened, which would end the node as a failed disk does.
Source: Linux man page getrlimit(2); RocketMQ's bin/os.sh (nofile).
"""

from __future__ import annotations

import resource

FILES_WANTED = 65_536
FILES_RESERVED = 2048
"""For the log, the queues, the index and the peers; at most three quarters of what there is."""


def raise_open_file_limit() -> int:
    """Raise the process' soft limit as far as it is allowed and wanted; return what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return FILES_WANTED if soft == resource.RLIM_INFINITY else soft


def clients_within(open_files: int, clients_max: int) -> int:
    """Return how many clients may be connected where so many files may be open."""
    return max(1, min(clients_max, open_files - min(FILES_RESERVED, open_files * 3 // 4)))
