"""Parking and satisfying: the two flows that every operation goes through.

**Why the lock is held over check, watch and check.** The second check is what makes parking safe: an event between the
first check and the watch would otherwise be missed. That both happen under the operation's lock prevents this:

    1. thread A parks an operation; it is watched under its first key, A is about to watch it under the second
    2. thread B checks the first key, finds the operation complete, and runs ``on_complete``, which takes lock X
    3. A, which holds X (its caller did), runs ``try_complete`` in the second check and waits for what B holds

With the lock held by A, B's try misses, sets the flag, leaves, and A looks again when it lets go.

**Completed between the last check and the timer.** The operation is watched before it is in the timer, so it can be
completed by a check before there is anything to cancel there:

    1. A's second check fails; A lets go of the operation's lock
    2. B checks, completes the operation, and finds no timer entry to cancel
    3. A adds the operation to the timer, where it would stay until its time is up

So A, after adding, looks at the outcome: if there is one, A cancels the entry. If it comes later, whoever decides it
looks for the entry afterwards, and sees it. (Free-threaded build: "which bucket" and "which outcome" are two slots of
one object, whose stores go through its own mutex; so one comes first, and the other's thread sees it.)

**Shut down meanwhile.** The parker looks at ``_closed`` after watching; ``shutdown`` sets it before it collects what is
watched. Both go through the dict of the key's watchers, so either the operation is collected or its parker sees the
flag and takes it out again.

**Completed from outside while it is parked.** What ends in the first two checks counts as immediate and never as
parked. Who decides that writes the outcome first and then looks whether the parker is still at it; the parker leaves
first and then looks at the outcome. If both were late, they meet: the outcome is "forced", and it was parked.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from purgatory._errors import AlreadyParked, InvalidOperation, NoKeys, PurgatoryClosed, WatchKeysType, unhashable
from purgatory._hold import wait_for
from purgatory._operation import NEVER_HOME, DelayedOperation, homeless
from purgatory._watchers import IMMEDIATE, OPEN, WatcherList, Watchers
from timer import NS_PER_MS, TimerClosed
from timer._task import TimerTaskEntry

if TYPE_CHECKING:
    from purgatory._audience import Audience
    from purgatory._graveyard import Graveyard
    from purgatory._room import Room
    from timer import Timer

__all__ = ["Flows"]


class Flows:
    """The part of :class:`~purgatory.DelayedOperationPurgatory` that every operation goes through."""

    __slots__ = (
        "_admitted",
        "_audience",
        "_closed",
        "_graveyard",
        "_name",
        "_room",
        "_shard_count",
        "_shards",
        "_timer",
    )

    _admitted: set[type]
    _audience: Audience
    _closed: bool
    _graveyard: Graveyard
    _name: str
    _room: Room | None
    _shard_count: int
    _shards: list[WatcherList]
    _timer: Timer | None

    # -- park

    def try_complete_else_watch(self, operation: DelayedOperation, watch_keys: Sequence[Hashable]) -> bool:
        """Complete the operation at once, or park it under every key.

        A key named twice counts once. If this raises, the operation is not in the purgatory, unless it has completed.

        Returns:
            True if this call completed the operation; False if it is parked (or was completed by another thread
            meanwhile, or before).

        Raises:
            NoKeys: there are no keys.
            WatchKeysType: ``watch_keys`` is a ``str``, or no sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is no operation.
            AlreadyParked: the operation was given to a purgatory before.
            PurgatoryFull: ``max_parked`` operations wait.
            PurgatoryClosed: the purgatory is shut down.
        """
        if type(operation) not in self._admitted:
            self._admit(operation)
        op = operation  # a name of its own: in the compiled core it has a type of its own, which the argument can't
        if op._home is not None:
            raise AlreadyParked(op)
        keys = watch_keys if type(watch_keys) is list or type(watch_keys) is tuple else _checked_keys(watch_keys)
        several = None
        try:
            if len(keys) != 1:
                several = dict.fromkeys(keys)  # each once
                if not several:
                    raise NoKeys
            key = keys[0]
            home = self._shards[hash(key) % self._shard_count]
        except TypeError:
            raise unhashable(keys) from None
        if self._closed:
            raise PurgatoryClosed(self._name)
        if self._room is not None:
            self._room.take()

        hold = op._hold
        try:
            try:
                del hold[0]
            except IndexError:
                wait_for(hold)
        except BaseException:  # the user's lock raised, or an interrupt ended the wait for it
            if self._room is not None:
                self._room.give()
            raise
        if op._home is not None:  # another thread was quicker
            self._stay_out(op)
            if op._pending:
                op.maybe_try_complete()
            raise AlreadyParked(op)
        op._home = home
        if homeless.busy:
            with homeless.lock:
                pass
        if op._watches is NEVER_HOME:  # forced, or cancelled, before it had a home
            op._home = None
            self._stay_out(op)
            return False
        try:
            op._phase = IMMEDIATE
            op._checks = 1
            try:
                completed = op.try_complete()
            except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                self._audience.contain(op, "try_complete", error)
                completed = False
            if op._outcome != OPEN:
                # Completed by this very check, or meanwhile from outside.
                return self._was_immediate(op, home) and completed
            op._token = token = object()
            if several is None:
                # WatcherList.watch, its usual way written out.
                watchers = home.by_key.get(key)
                if watchers is None:
                    watchers = home.watch(key, token, op)
                    op._watches = watchers.alone or (watchers,)
                else:
                    op._watches = watchers.alone
                    watchers[token] = op
                    if watchers.closed:
                        watchers.pop(token, None)
                        watchers = home.watch(key, token, op)
                        op._watches = watchers.alone or (watchers,)
            else:
                self._watch(op, several, token)
            if op._outcome == OPEN:
                op._checks = 2
                try:
                    completed = op.try_complete()
                except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                    self._audience.contain(op, "try_complete", error)
            if op._outcome == IMMEDIATE:
                self._graveyard.bury(op)
                return self._was_immediate(op, home) and completed
        except BaseException:
            op._phase = OPEN
            if op.cancel():
                home.waiting.append(None)
            else:
                self._at_once(op, home)
                self._graveyard.bury(op)
            raise
        finally:
            op._phase = OPEN
            hold.append(None)

        timer = self._timer
        if op._outcome == OPEN:
            if timer is None:
                op._deadline_ns = time.monotonic_ns() + op._delay_ms * NS_PER_MS
            else:
                try:
                    timer.add(op)
                except BaseException as error:
                    ours = op.cancel()
                    home.waiting.append(None)
                    if not isinstance(error, TimerClosed) or not self._closed:
                        raise
                    # A shutdown came between: it has settled the operation, or that is for the caller to do.
                    if ours:
                        raise PurgatoryClosed(self._name) from None
                    return False
        # What happened since the last check?
        if op._outcome == OPEN and not self._closed:
            home.waiting.append(None)
        elif self._put_right(op, home):
            return False
        if self._audience.parkers:
            self._audience.parked(op)
        if op._pending:
            op.maybe_try_complete()
        return False

    def _watch(self, operation: DelayedOperation, keys: Iterable[Hashable], token: object) -> None:
        """Put the operation under several keys, until it is complete."""
        shards, count = self._shards, self._shard_count
        watches: list[Watchers] = []
        operation._watches = watches
        for key in keys:
            if operation._outcome != OPEN:
                break
            watches.append(shards[hash(key) % count].watch(key, token, operation))

    @staticmethod
    def _at_once(operation: DelayedOperation, home: WatcherList) -> bool:
        """Whether an operation that is complete counts as immediate; if not, it is counted as parked."""
        operation._phase = OPEN
        with home.lock:
            pass  # behind it, whoever decided has made up his mind
        if operation._outcome == IMMEDIATE:
            return True
        home.waiting.append(None)
        return False

    def _was_immediate(self, operation: DelayedOperation, home: WatcherList) -> bool:
        """The same, and tell whoever is told of those that were parked."""
        if self._at_once(operation, home):
            return True
        if self._audience.parkers:
            self._audience.parked(operation)
        return False

    def _put_right(self, operation: DelayedOperation, home: WatcherList) -> bool:
        """An operation was completed, or the purgatory shut down, meanwhile. Whether it counts as immediate."""
        immediate = self._at_once(operation, home)
        if operation._outcome != OPEN:
            # Whoever completed it may have come before its last watch, or before the timer.
            self._graveyard.bury(operation)
            TimerTaskEntry.cancel(operation)
        elif operation.cancel():
            raise PurgatoryClosed(self._name)
        return immediate

    def _stay_out(self, operation: DelayedOperation) -> None:
        """Give back what an operation took that is not parked after all."""
        operation._hold.append(None)
        if self._room is not None:
            self._room.give()

    # -- satisfy

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation parked under a key.

        Call it after each event that might complete one, once the change is visible to other threads.

        Returns:
            How many operations this call completed.

        Raises:
            UnhashableKey: the key has no hash.
        """
        try:
            shard = self._shards[hash(key) % self._shard_count]
        except TypeError:
            raise unhashable([key]) from None
        watchers = shard.by_key.get(key)
        if watchers is None:
            return 0
        completed = 0
        graves = 0
        # A list, made in one step that is atomic in both builds: operations come and go while hooks run.
        operations = [*watchers.values()]
        for operation in operations:
            if operation is None:
                graves += 1
            elif operation._outcome != OPEN:
                watchers.pop(operation._token, None)
            else:
                try:
                    if operation._check():
                        completed += 1
                    elif operation._outcome == OPEN:
                        continue
                except BaseException:
                    # This thread is being stopped: the others under the key have not had their check.
                    self._check_later(operations)
                    raise
                if operation._watches is not watchers.alone:
                    self._graveyard.bury(operation, watchers)
                watchers.pop(operation._token, None)
        if graves:
            self._graveyard.clear(watchers)
        if not watchers and not watchers.idle:
            self._graveyard.note_idle(watchers)
        return completed

    def _check_later(self, operations: Iterable[DelayedOperation | None]) -> None:
        for operation in operations:
            if operation is not None and operation._outcome == OPEN:
                self._graveyard.keeper.retry(operation)

    def _admit(self, operation: object) -> None:
        """Check a type once."""
        kind = type(operation)
        if not isinstance(operation, DelayedOperation):
            raise InvalidOperation(operation, "it is no DelayedOperation")
        if kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__:
            raise InvalidOperation(
                operation, "operations are told apart by identity; say eq=False to attrs or dataclass"
            )
        self._admitted.add(kind)


def _checked_keys(watch_keys: object) -> Sequence[Hashable]:
    if isinstance(watch_keys, (str, bytes, bytearray)) or not isinstance(watch_keys, Sequence):
        raise WatchKeysType(watch_keys)
    return watch_keys
