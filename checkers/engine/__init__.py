"""Runs checkers over a recorded run: what the engines share, and the engine without Spark.

`job` defines what to check, `judge` is shared by both engines, `local` needs pyarrow alone, `java`
finds the Java that PySpark runs on. The PySpark pipeline is checkers.spark.pipeline, the only
module that imports pyspark.
"""
