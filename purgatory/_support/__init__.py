"""Used by every part of the core: errors, labels of keys, the choice of implementation, and forks."""
