"""Pure broker: requests and committed entries in, replies out. No clock, socket or rng."""
