"""A page for each violation that a report shows: what was promised, what happened, and why."""
