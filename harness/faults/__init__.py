"""One file a fault; see `harness.plugins.Fault` for the contract."""
