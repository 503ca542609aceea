"""Faults of processes: kill, pause, crash loop, rolling restart, leadership transfer."""
