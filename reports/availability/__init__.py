"""When the group served and when it did not: outages, recovery after each fault, elections."""
