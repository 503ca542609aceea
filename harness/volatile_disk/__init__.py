"""A file system for a node that is not ours, which loses what was not synced. Needs FUSE."""
