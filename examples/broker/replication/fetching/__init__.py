"""Reads by consumers and followers.

fetch_sessions    what a fetch asks for, remembered between requests
delayed_fetch     a fetch that waits for bytes
fetches           opens sessions, reads and parks
"""
