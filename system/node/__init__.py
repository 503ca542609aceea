"""The trio shell around the pure broker core: disk, network, timers.

`python -m shaketable.system.node` runs it.
"""
