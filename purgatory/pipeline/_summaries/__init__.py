"""Small tables computed from what the engine has summed: advice on timeouts, and what other settings would do."""
