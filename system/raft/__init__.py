"""The consensus core, in DLedger's terms: no clock, no socket, no randomness, no await."""
