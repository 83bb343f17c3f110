"""What operations of these tests do at one of their checks."""


def at_check(number, does):
    """A look that does this at one check of the operation, by its number. A park makes the first two."""
    return lambda operation: operation.checks == number and does(operation)


def ready_at(number):
    """A look from which on the operation can complete."""
    return at_check(number, lambda operation: setattr(operation, "ready", True))
