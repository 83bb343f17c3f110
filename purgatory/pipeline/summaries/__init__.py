"""Small tables, made on the driver of what the walks summed up, and what follows from them."""
