"""The page of a run: reads the run's folder, selects and counts what is shown, and renders HTML."""
