"""Built-in faults, one file each; see `contracts.plugins.Fault` for the interface."""
