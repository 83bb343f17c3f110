"""Pages for people: findings, plots, lists, and the one HTML file they are put together in."""
