"""What a seed decides, as data: the group, its settings, its faults and the clients' calls."""
