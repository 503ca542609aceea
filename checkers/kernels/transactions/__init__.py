"""Inner loops of the isolation checker (checkers.transactions), as those beside this folder."""
