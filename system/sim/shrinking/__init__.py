"""Makes a failing run small: fewer faults and operations, the same violated invariant."""
