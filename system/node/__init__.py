"""The trio shell around the pure broker: disk, transport and pump.

`python -m shaketable.system.node` runs it.
"""
