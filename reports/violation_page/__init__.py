"""A page for each violation in a report: what was promised, what happened, and why."""
