"""The harness: launches a group, shakes it, records what clients saw. A black box view."""
