"""Name server core, pure: which brokers are alive and which topics each of them has."""
