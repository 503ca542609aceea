"""A chaos and correctness harness for replicated systems, and the broker group it shakes first.

The packages are the folders of the same name at the top of the project; here are links to them.
"""

from shaketable.harness.described.operations import operation

__all__ = ["operation"]
