"""What runs checkers over a recorded run: the PySpark pipeline, and the same in one process.

`job` says what to check, `judge` is the part that both engines share, `spark` is the
pipeline and the only module that imports pyspark, `local` needs pyarrow alone, `java`
finds the Java that PySpark runs on.
"""
