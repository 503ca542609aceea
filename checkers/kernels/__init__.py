"""Inner loops compiled by numba: plain functions of arrays, without Arrow, clock or I/O."""
