"""Where a node keeps its files: a real disk, or one that forgets unsynced writes at a kill."""
