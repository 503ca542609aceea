"""PySyncObj: a library for replicated Python objects. Its nodes are a small server of ours."""
