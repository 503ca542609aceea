"""The page of a run: what it shows, chosen and counted of the run's folder, and its HTML."""
