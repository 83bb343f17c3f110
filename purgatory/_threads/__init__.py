"""The background threads: the retrier repeats checks, and the watchdog reports slow callbacks."""
