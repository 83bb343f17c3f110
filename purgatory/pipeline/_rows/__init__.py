"""Rows as they are read: from which files, whether all are there, and which of them can be true."""
