"""Small tables computed from what the engine has summed: advice on timeouts, and the trials of a what-if."""
