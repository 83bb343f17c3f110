"""The report's tables: each one is defined once, in SQL, and runs on DuckDB or on Spark."""
