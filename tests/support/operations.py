"""An operation that completes on request, and records its hooks."""

from purgatory import DelayedOperation


class Waiting(DelayedOperation):
    """Completes when ``ready`` is set. ``history`` names the hooks that ran, in order."""

    def __init__(self, delay_ms=60_000, *, ready=False, lock=None, complete=None, expire=None, look=None):
        super().__init__(delay_ms, lock=lock)
        self.ready = ready
        self.history = []
        self._doing = complete, expire, look

    def try_complete(self):
        if self._doing[2] is not None:
            self._doing[2](self)
        return self.ready and self.force_complete()

    def on_complete(self):
        self.history.append("complete")
        if self._doing[0] is not None:
            self._doing[0](self)

    def on_expiration(self):
        self.history.append("expire")
        if self._doing[1] is not None:
            self._doing[1](self)
