"""Histories: the schema, crash-safe segments, export to Parquet and JSON lines."""
