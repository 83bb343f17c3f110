"""Long polls behind several processes: an event comes in on any of them, a poll waits in any other."""
