"""Small tables that the driver makes from the sums of the walks, and the advice that follows from them."""
