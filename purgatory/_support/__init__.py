"""Used by every part of the core: errors, labels of keys, and the choice of implementation."""
