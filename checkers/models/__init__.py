"""Sequential models, one file each: what an object may answer when calls come one at a time."""
