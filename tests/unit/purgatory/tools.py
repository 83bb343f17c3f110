"""What operations of these tests do at one of their checks, and timers that do something with a task that they get."""

from timer import MockTimer, Timer


def at_check(number, does):
    """A look that does this at one check of the operation, by its number. A park makes the first two."""
    return lambda operation: operation.checks == number and does(operation)


def ready_at(number):
    """A look from which on the operation can complete."""
    return at_check(number, lambda operation: setattr(operation, "ready", True))


class Racing(MockTimer):
    """A timer that does something with a task just before it takes it, or just after."""

    def __init__(self, before=lambda task: None, after=lambda task: None, **settings):
        super().__init__(**settings)
        self.before, self.after = before, after

    def add(self, task):
        self.before(task)
        super().add(task)
        self.after(task)


class AddingAgain(Racing):
    """The same, which has no ``put_off`` of its own: it adds the task again."""

    put_off = Timer.put_off
