"""A run that is judged while it goes on (ADR 53): what of it, by whom, and what is told."""
