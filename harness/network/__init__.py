"""The links between nodes: a user-space proxy for each ordered pair (no root needed)."""
