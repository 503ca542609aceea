"""Built-in faults, one file a kind; see `contracts.plugins.Fault` for the interface."""
