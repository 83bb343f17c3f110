"""How many operations a purgatory may hold, in total and per tenant."""
