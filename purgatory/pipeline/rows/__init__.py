"""Rows as they are read: from which files, how many of them, which are sound, and whose they are."""
