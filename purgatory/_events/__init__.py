"""What happens to operations and how it is reported: states and outcomes, observers, and the log."""
