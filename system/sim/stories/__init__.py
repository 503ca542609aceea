"""Explains a failing run to a reader who did not write the test: as text, pictures and a page."""
