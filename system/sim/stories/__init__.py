"""Tells a failing run to somebody who did not write the test: as text, as pictures, as a page."""
