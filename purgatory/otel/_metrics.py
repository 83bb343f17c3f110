"""The figures of every purgatory, timer, feed and gate as OpenTelemetry metrics, read when they are collected.

The names are those of the Prometheus metrics, without ``_total``, which exporters add. A histogram is two counters,
``..._count`` and ``..._sum``, because OpenTelemetry has no instrument for a histogram that was counted elsewhere.

OpenTelemetry asks each instrument by itself. So one reading serves all instruments, until one of them asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from purgatory._readings import FAMILIES, Family, Kind, Reading
from purgatory._series import Name, SeriesByName
from timer._fork import new_lock

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

_NS: Final = 1e9
#: Needs an observer per purgatory, which Prometheus' collector attaches.
_NOT_EXPORTED: Final = frozenset({"time_parked_seconds", "callback_seconds"})


def export_metrics(meter_provider: MeterProvider | None = None) -> Callable[[], None]:
    """Export the figures of all purgatories, timers, feeds and gates of the process as OpenTelemetry metrics.

    Nothing is measured between two collections. Call it once.

    Args:
        meter_provider: where metrics go. The default is OpenTelemetry's global one.

    Returns:
        A function that ends it.

    >>> from purgatory.otel import export_metrics
    >>> stop = export_metrics()
    >>> stop()
    """
    exporter = _Exporter()
    exporter.create_instruments(metrics.get_meter("purgatory", meter_provider=meter_provider))
    return exporter.stop


class _Exporter:
    """Answers the instruments. Any thread may collect."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._series = SeriesByName()
        self._sums: dict[Name, Reading] = {}
        self._served: set[str] | None = None  # the instruments that the last reading has served
        self._stopped = False

    def stop(self) -> None:
        """Export nothing more. OpenTelemetry cannot remove instruments."""
        self._stopped = True

    def create_instruments(self, meter: Meter) -> None:
        """Create an instrument for each family."""
        create: dict[Kind, Callable[..., Any]] = {
            Kind.COUNTER: meter.create_observable_counter,
            Kind.SUM: meter.create_observable_up_down_counter,
            Kind.MAX: meter.create_observable_gauge,
            Kind.MIN: meter.create_observable_gauge,
        }
        for family in FAMILIES:
            name = f"purgatory_{family.name}"
            unit = "s" if name.endswith("_seconds") else ""
            if family.name in _NOT_EXPORTED:
                continue
            if family.kind is Kind.HISTOGRAM:
                for part, part_unit in (("count", ""), ("sum", unit)):
                    callback = self._callback(family, part)
                    meter.create_observable_counter(f"{name}_{part}", [callback], part_unit, family.text)
            else:
                create[family.kind](name, [self._callback(family, "")], unit, family.text)

    def _callback(self, family: Family, part: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        instrument = f"{family.name} {part}"

        def observe(_: CallbackOptions) -> list[Observation]:
            sums = self._read(instrument)
            observations = []
            for (subject, name), (values, observed) in sums.items():
                if subject is not family.subject:
                    continue
                figures: dict[Any, float] = dict(values)
                if part:
                    figures = {
                        series: sum(counts) if part == "count" else sum_ns / _NS
                        for series, (counts, sum_ns) in observed.items()
                    }
                for (series, outcome), value in figures.items():
                    if series == family.name:
                        labels = {subject.value: name} | ({} if outcome is None else {"outcome": outcome})
                        observations.append(Observation(value, labels))
            return observations

        return observe

    def _read(self, instrument: str) -> dict[Name, Reading]:
        """The last reading, or a new one if that has served the instrument before."""
        with self._lock:
            if self._stopped:
                return {}
            if self._served is None or instrument in self._served:
                self._sums = self._series.read()
                self._served = set()
            self._served.add(instrument)
            return self._sums
