"""One prepared statement over and over, with libpq's own calls in one callback of the loop.

psycopg's cursor wakes a task for each step of a statement. A worker that follows a feed sends the same small statement
after each notification, so that would be most of its cost. Here the callback does it all:

    a notification came, and nothing is in flight     send the statement at once, for which no task is woken
    an answer is there                                wake the task, if the answer has news or the task asked for one

``psycopg.pq`` is documented. Everything here belongs to one loop, and one task awaits answers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg.pq.abc import PGresult

    from purgatory.feeds.engines.postgres._link import Link


class DirectStatement:
    """A statement that is prepared on a connection, which nothing else uses until :meth:`stop`.

    Args:
        link: the connection.
        name: the statement's.
        parameters: returns its parameters now.
        has_news: whether an answer says more than that nothing has changed.

    Attributes:
        is_due: whether to send it: there was a notification, or its last answer was not all.
        was_notified: whether a notification came since the task last looked.
    """

    def __init__(
        self,
        link: Link,
        name: bytes,
        parameters: Callable[[], Sequence[bytes]],
        has_news: Callable[[PGresult], bool],
    ) -> None:
        self.is_due = True
        self.was_notified = False
        self._link = link
        self._name = name
        self._parameters = parameters
        self._has_news = has_news
        self._socket = link.pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._in_flight = self._wants_any = False
        self._partial: PGresult | None = None
        self._answer: PGresult | None = None
        self._error: psycopg.Error | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._loop.add_reader(self._socket, self._readable)

    async def answer(self, wait_s: float) -> PGresult:
        """The next answer with news. After a time any answer, for which the statement is sent.

        Raises:
            psycopg.Error: the connection is lost.
        """
        self.send_if_due()
        if self._answer is None and self._error is None:
            timer = self._loop.call_later(wait_s, self._ask)
            await self._wait(timer)
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        answer, self._answer = self._answer, None
        return answer

    async def stop(self) -> None:
        """Leave the connection to others, when the answer on its way has come. It is dropped.

        Raises:
            psycopg.Error: the connection is lost.
        """
        self.is_due = False
        while self._in_flight:
            self._wants_any = True
            await self._wait()
        self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Touch the connection no more."""
        if self._socket >= 0:
            self._loop.remove_reader(self._socket)
            self._socket = -1

    def send_if_due(self) -> None:
        """Send it, unless there is an answer that the task has not seen."""
        if not self.is_due or self._in_flight or self._answer is not None or self._error is not None:
            return
        self.is_due, self._in_flight = False, True
        pgconn = self._link.pgconn
        try:
            pgconn.send_query_prepared(self._name, self._parameters(), result_format=1)
            if pgconn.flush():  # the last one was answered, so there is room for a few bytes
                raise psycopg.OperationalError("the server takes no statement")
        except psycopg.Error as error:
            self._fail(error)

    async def _wait(self, timer: asyncio.TimerHandle | None = None) -> None:
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def _ask(self) -> None:
        """The time is up: any answer will do."""
        self.is_due = self._wants_any = True
        self.send_if_due()

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
                self._take()
            while pgconn.notifies() is not None:
                self.is_due = self.was_notified = True
        except psycopg.Error as error:
            self._fail(error)
            return
        self.send_if_due()

    def _take(self) -> None:
        """The statement has ended."""
        result, self._partial = self._partial, None
        if result is not None and (self._wants_any or self._has_news(result)):
            self._wants_any = False
            self._answer = result
            self._wake()

    def _fail(self, error: psycopg.Error) -> None:
        self._error, self._in_flight = error, False
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
