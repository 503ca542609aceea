"""Tries which faults work on this machine, by doing them; see `harness.terminal.doctor`."""
