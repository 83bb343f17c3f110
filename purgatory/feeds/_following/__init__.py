"""Following a feed, on a loop or on threads: the block, the reading, and the applying of events."""
