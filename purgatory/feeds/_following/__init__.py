"""Following a feed: the block that is open while a worker follows, and what happens in it."""
