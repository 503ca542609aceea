"""Measure detection power: hunt planted bugs, and check that the correct system stays clean.

`plan` decides which bugs are hunted and how, `hunting` runs one hunt, `scorecard` sums up all.
"""
