"""Invariants of one member, checked at each of its steps: in simulation, and by real nodes."""
