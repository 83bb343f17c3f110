"""Notifications, and one prepared statement over and over, with libpq's own calls in one callback of the loop.

psycopg's cursor wakes a task for each step of a statement. A worker that follows a feed reads after each notification,
so that would be most of its cost. Here the callback does it all:

    notifications came, and nothing is in flight     take them. Wake the task if it has news by them, or else send the
                                                     statement at once if they ask for it
    an answer is there                               wake the task, if the answer has news or the task asked for one
    the time of a wait has passed                    send the statement, also if notifications bring news all the time

Notifications that come while the statement is in flight, or its answer is not read, are taken afterwards: the answer
may have the same events. ``psycopg.pq`` is documented. Everything here belongs to one loop, and one task awaits news.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from psycopg.pq import PGnotify
    from psycopg.pq.abc import PGresult

    from purgatory.feeds.engines.postgres._link import Link

#: How many notifications wait to be taken. Older ones are dropped, and a later one cannot continue from before them.
_MOST_WAITING: Final = 1_000
#: The least time between two statements that no notification has asked for, in seconds.
_LEAST_S: Final = 1.0


class DirectStatement:
    """A statement that is prepared on a connection, which nothing else uses until :meth:`stop`.

    Args:
        link: the connection.
        name: the statement's.
        parameters: returns its parameters now.
        has_news: whether an answer says more than that nothing has changed.
        take: takes notifications. Returns whether they have news for the task. It may set ``is_due``.

    Attributes:
        is_due: whether to send it: a notification asked for it, or its last answer was not all.
        was_notified: whether a notification came since the task last looked.
        answer: an answer with news, until the task takes it.
        error: why the connection is lost.
    """

    def __init__(
        self,
        link: Link,
        name: bytes,
        parameters: Callable[[], Sequence[bytes]],
        has_news: Callable[[PGresult], bool],
        take: Callable[[Iterable[PGnotify]], bool],
    ) -> None:
        self.is_due = True
        self.was_notified = False
        self.answer: PGresult | None = None
        self.error: psycopg.Error | None = None
        self._link = link
        self._name = name
        self._parameters = parameters
        self._has_news = has_news
        self._take = take
        self._notices: deque[PGnotify] = deque(maxlen=_MOST_WAITING)
        self._socket = link.pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._in_flight = self._wants_any = False
        self._partial: PGresult | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._wait_s = self._ask_s = 0.0  # how long the task waits, and when it wants any answer
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._socket, self._readable)

    async def wait(self, wait_s: float) -> None:
        """Wait for news: an answer, an error, or what notifications say. After a time the statement is sent for any."""
        self._wait_s, self._ask_s = wait_s, self._loop.time() + wait_s
        if self._timer is None or self._timer.when() > self._ask_s:
            self._set_timer(self._ask_s)
        await self._wait()

    async def stop(self) -> None:
        """Leave the connection to others, when the answer on its way has come. It is dropped.

        Raises:
            psycopg.Error: the connection is lost.
        """
        self.is_due = False
        self._cancel_timer()
        while self._in_flight:
            self._wants_any = True
            await self._wait()
        self.close()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Touch the connection no more."""
        self._cancel_timer()
        if self._socket >= 0:
            self._loop.remove_reader(self._socket)
            self._socket = -1

    def go_on(self) -> None:
        """Take notifications, and send the statement if it is due. Not before the task has read the last answer."""
        if self._in_flight or self.answer is not None or self.error is not None:
            return
        if self._notices:
            if self._take(self._notices):
                self._wake()
            self._notices.clear()
        if self.is_due:
            self._send()

    def _send(self) -> None:
        self.is_due, self._in_flight = False, True
        pgconn = self._link.pgconn
        try:
            pgconn.send_query_prepared(self._name, self._parameters(), result_format=1)
            if pgconn.flush():  # the last one was answered, so there is room for a few bytes
                raise psycopg.OperationalError("the server takes no statement")
        except psycopg.Error as error:
            self._fail(error)

    async def _wait(self) -> None:
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _set_timer(self, when_s: float) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_at(when_s, self._time_is_up)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _time_is_up(self) -> None:
        """Send the statement, also if the task has had news by notifications. If it has not, any answer will do."""
        now_s, ask_s = self._loop.time(), self._ask_s
        if ask_s <= now_s and self._waiting is not None:
            self._wants_any = True
        self._set_timer(ask_s if ask_s > now_s else now_s + max(self._wait_s, _LEAST_S))
        if not self._in_flight:
            self.is_due = True
            self.go_on()

    def _readable(self) -> None:
        """The server has sent something, or has closed the connection."""
        pgconn = self._link.pgconn
        try:
            pgconn.consume_input()
            while self._in_flight and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    self._partial = result
                    continue
                self._in_flight = False
                self._keep()
            while (notice := pgconn.notifies()) is not None:
                self.was_notified = True
                self._notices.append(notice)
        except psycopg.Error as error:
            self._fail(error)
            return
        self.go_on()

    def _keep(self) -> None:
        """The statement has ended."""
        result, self._partial = self._partial, None
        if result is not None and (self._wants_any or self._has_news(result)):
            self._wants_any = False
            self.answer = result
            self._wake()

    def _fail(self, error: psycopg.Error) -> None:
        self.error, self._in_flight = error, False
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
