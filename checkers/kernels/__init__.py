"""Inner loops, compiled by numba: plain functions of arrays, without Arrow, clock or I/O."""

from pathlib import Path

if not Path(__file__).is_file():  # in the zip file that Spark ships to executors
    from shaketable.checkers.kernels.shipped import unpacked

    __path__ = [unpacked(__file__), *__path__]
