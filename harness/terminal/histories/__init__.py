"""Commands that judge histories of any origin: `check` and `watch`."""
