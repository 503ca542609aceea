"""Pure broker: requests and committed entries in, replies out. No clock, no sockets, no random generator."""
