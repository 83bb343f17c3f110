"""An observer that makes a span of each wait.

    request   |--------------------------------------|          the parker's span: the parent
    wait         |-- park Fetch -----------------|              from parked to answered, hooks included
    event                                   |-----------|       the event's span: a link, for it has a trace of its own

The span begins when the operation is parked, as a child of the current span there. It ends when the operation's hooks
have run, with the outcome, how often it was checked, and what a hook raised. The span that is current where the outcome
is decided (in the handler that appended, and then checked the key) becomes a link. So a trace shows *which* event
satisfied a wait, and not only that it ended. A deadline has no span, and gives no link.

An operation that completed at once did not wait and has no span. The request's own span is enough.

**Two threads.** Another thread may complete an operation before its parking thread reports it as parked, so the two
reports may come in either order. Each thread stores its part, and then looks for the other's part. The span is removed
from a dict in one atomic step, and the thread that removes it ends it:

    1. finisher: no span yet; stores the end, looks again: still none
    2. parker:   stores the span, finds the end, takes the span, ends it, at the finisher's time

If parking raised because the purgatory was shut down meanwhile, an end never gets its span. So only the latest
:data:`MOST_ENDS` ends without a span are kept.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import attrs
from opentelemetry import trace

from purgatory import InvalidSetting, Observer, Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from purgatory import DelayedOperation

#: How many operations may have ended before their parking thread reported them as parked.
MOST_ENDS: Final = 1_000
#: How many keys of an operation are named.
MOST_KEYS: Final = 16


@attrs.frozen
class _End:
    """How an operation ended."""

    time_ns: int
    outcome: Outcome
    error: BaseException | None
    link: SpanContext | None


class Spans(Observer):
    """An observer of one purgatory: ``DelayedOperationPurgatory("fetch", observers=[Spans("fetch")])``.

    Args:
        purgatory: the purgatory's name.
        tracer_provider: where spans go; OpenTelemetry's global one if not given.
        keys: whether spans carry the watch keys, as text. Say no if yours are secret.

    Raises:
        InvalidSetting: the name is not a ``str``.
    """

    __slots__ = ("_ends", "_keys", "_links", "_purgatory", "_spans", "_tracer")

    def __init__(self, purgatory: str, tracer_provider: TracerProvider | None = None, *, keys: bool = True) -> None:
        if type(purgatory) is not str or not purgatory:
            raise InvalidSetting("purgatory", purgatory, "the purgatory's name")
        self._purgatory = purgatory
        self._keys = keys
        self._tracer = trace.get_tracer("purgatory", tracer_provider=tracer_provider)
        # By operation. Each use is a single dict operation, atomic in the default and in the free-threaded build.
        self._spans: dict[DelayedOperation, Span] = {}
        self._links: dict[DelayedOperation, SpanContext] = {}
        self._ends: dict[DelayedOperation, _End] = {}

    def parked(self, operation: DelayedOperation, /) -> None:
        """Begin the span."""
        kind = type(operation).__qualname__
        attributes: dict[str, str | int | list[str]] = {
            "purgatory.name": self._purgatory,
            "purgatory.operation": kind,
        }
        if operation.delay_ms is not None:
            attributes["purgatory.delay_ms"] = operation.delay_ms
        if self._keys:
            attributes["purgatory.keys"] = [str(key) for key in operation.keys[:MOST_KEYS]]
        self._spans[operation] = self._tracer.start_span(f"park {kind}", attributes=attributes)
        end = self._ends.pop(operation, None)
        if end is not None:
            self._end(operation, end)

    def leaving(self, operation: DelayedOperation, /) -> None:
        """Note the span that is current here, before the hooks make another one current."""
        here = trace.get_current_span().get_span_context()
        if here.is_valid and operation.outcome is not Outcome.IMMEDIATE:
            self._links[operation] = here

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:
        """End the span, or store its end for a parking thread that has yet to begin it."""
        if outcome is Outcome.IMMEDIATE:
            return
        end = _End(time.time_ns(), outcome, error, self._links.pop(operation, None))
        if self._end(operation, end):
            return
        self._ends[operation] = end
        if self._end(operation, end):
            self._ends.pop(operation, None)
        while len(self._ends) > MOST_ENDS:
            with contextlib.suppress(RuntimeError, StopIteration, KeyError):  # another thread was at it
                del self._ends[next(iter(self._ends))]

    def _end(self, operation: DelayedOperation, end: _End) -> bool:
        """End the operation's span, unless another thread has it."""
        span = self._spans.pop(operation, None)
        if span is None:
            return False
        if end.link is not None:
            span.add_link(end.link)
        span.set_attribute("purgatory.outcome", end.outcome.value)
        span.set_attribute("purgatory.checks", operation.checks)
        if end.error is not None:
            span.record_exception(end.error, timestamp=end.time_ns)
            span.set_status(trace.StatusCode.ERROR, repr(end.error))
        span.end(end_time=end.time_ns)
        return True
