"""What a node says and hears: connections, messages as frames, name servers."""
