"""A node's disks: the real one, or one that loses unsynced writes when the process is killed."""
