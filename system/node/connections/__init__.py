"""A node's network side: connections, the wire format of messages, name server registration."""
