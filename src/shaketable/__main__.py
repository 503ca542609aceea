"""`python -m shaketable` is the command `shaketable`."""

from shaketable.harness.cli import main

main()
