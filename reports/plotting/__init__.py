"""The plots of a run's page: one x axis, with faults shaded behind all.

Colours work on a light and on a dark page; nothing is shown by colour alone.
"""
