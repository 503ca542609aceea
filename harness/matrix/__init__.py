"""Many campaigns from one file: the cells of a matrix, and the queue that runs them."""
