"""Campaigns in a simulated world: the same phases, nemesis, files and verdicts, in virtual time."""
