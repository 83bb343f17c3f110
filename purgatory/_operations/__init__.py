"""The delayed operation: its states, its lock, and a queue of actions to run later."""
