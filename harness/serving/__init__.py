"""The store behind `shaketable serve`: what runs there are, and how they are shown to a browser."""
