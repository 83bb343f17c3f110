"""Operations that do something at one of their checks, timers that race with a parking thread, keys with own code."""

from tests.support import park
from timer import MockTimer, Timer


def at_check(number, does):
    """A look that does this at one check of the operation, by its number. A park makes the first two."""
    return lambda operation: operation.checks == number and does(operation)


def ready_at(number):
    """A look from which on the operation can complete."""
    return at_check(number, lambda operation: setattr(operation, "ready", True))


def expire(purgatory, *keys, **settings):
    """Park an operation, and let the timer's thread expire it at once. With a short delay this thread might do so."""
    park(purgatory, *keys, **settings).extend(1)


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
    """The same, which has no ``reschedule`` of its own: it adds the task again."""

    reschedule = Timer.reschedule


class Key:
    """A key with code of its own. All have one hash, and those of one number are equal."""

    def __init__(self, number=0):
        self.number = number

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self.number == other.number
