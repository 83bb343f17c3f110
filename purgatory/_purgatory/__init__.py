"""The purgatory: parking and checking, snapshots, and shutdown."""
