"""Makes a failing run small: fewer faults, fewer operations, the same broken invariant."""
