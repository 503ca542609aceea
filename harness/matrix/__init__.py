"""Many campaigns from one file: what the cells of a matrix are, and the queue that runs them."""
