"""Pure consensus core in DLedger's terms: no clock, no socket, no dice, no await."""
