"""Messages that come later: delayed ones, and those that consumers send back. Pure."""
