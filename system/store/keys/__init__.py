"""The key index: find messages by topic and key."""
