"""The page of histories that `check` judged, and its pictures."""
