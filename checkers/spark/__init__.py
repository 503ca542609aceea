"""The check pipeline on PySpark, on this machine, a cluster or a Spark Connect server."""
