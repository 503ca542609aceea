"""What the members' disks hold before the group's first start, written by other software."""
