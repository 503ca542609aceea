"""Find out which faults work on this machine by injecting them; see `harness.terminal.doctor`."""
