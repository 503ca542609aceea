"""The trio shell around the pure broker: disk, transport, pump, `python -m system.node`."""
