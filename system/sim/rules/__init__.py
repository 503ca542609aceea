"""What must hold in every step of a simulated run, and of what its clients saw."""
