"""Spark itself: one way to get a session, and folders wherever it reads and writes."""
