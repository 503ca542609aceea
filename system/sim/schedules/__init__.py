"""What a seed decides: the group, its settings, its faults and what its clients do, as data."""
