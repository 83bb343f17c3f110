"""What a stream remembers: the two state machines, how their state is packed, and Spark's processors around them."""
