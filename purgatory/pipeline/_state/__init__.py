"""The state of a stream: the two state machines, how their state is packed, and Spark's processors around them."""
