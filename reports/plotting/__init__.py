"""The plots of a run's page: one x axis, and faults shaded behind all.

Colours are chosen to stand on a light and on a dark page; nothing is told by colour alone.
"""
