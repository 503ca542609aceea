"""Special cases that need no search: algorithms that decide some histories by sorting them.

Each looks at a problem and either does not apply (None), or decides: it never guesses.
"""
