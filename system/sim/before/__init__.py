"""What stood on the members' disks before there was a group, as others had written it."""
