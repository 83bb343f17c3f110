"""OpenTelemetry: a span for each operation that waits, from the moment it is parked to the answer, and metrics.

``instrument`` does it for every purgatory and feed of the process, ``Spans`` is the observer for one purgatory. Needs
the extra ``[otel]``, which is OpenTelemetry's API. The SDK that the program configures decides where the spans go.
"""

from purgatory._distribution import missing

try:
    from purgatory.otel._instrument import instrument
    from purgatory.otel._metrics import export_metrics
    from purgatory.otel._spans import Spans
except ModuleNotFoundError as _error:
    raise missing(_error, "otel") from _error

__all__ = ["Spans", "export_metrics", "instrument"]
