"""One file a fault; see `contracts.plugins.Fault` for the contract."""
