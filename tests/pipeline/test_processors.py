"""The stages as Spark drives them, by Spark's own tester, without a JVM."""

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from purgatory.pipeline.processors import _HANDED, _KEY_COLUMNS, KeyStage, OperationStage


@pytest.fixture
def keyed():
    """Rows of stage 1, one frame: tag, us, operation, number, count, watched, level, until."""

    def keyed(*rows):
        return pd.DataFrame([(*row, None, "{}") for row in rows], columns=list(_KEY_COLUMNS))

    return keyed


@pytest.fixture
def handed():
    """Rows of stage 2, one frame: tag, operation, number, count, us, until."""

    def handed(*rows):
        return pd.DataFrame([(*row, None, None) for row in rows], columns=list(_HANDED))

    return handed


@pytest.fixture
def stage():
    """A tester on event time, and what it gives as tuples of some columns."""

    def stage(processor, *columns):
        tester = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda row: 2**50)

        def rows(frame):
            # With no timer due, the tester gives a frame without even columns.
            return [] if frame.empty else [tuple(row) for row in frame[list(columns)].itertuples(index=False)]

        return tester, rows

    return stage


def test_nothing_is_decided_before_the_watermark(stage, keyed):
    """Rows wait for the watermark, then come out in the order of their own instants."""
    tester, rows = stage(KeyStage(), "tag", "operation", "us")
    watch = ("watch", 5_000, "op", 0, 1, "k", 3, 9_000)
    assert [] == rows(tester.testInPandas(0, keyed(watch, ("event", 6_000, None, 0, 1, "k", 3, 0))))
    assert [("open", "op", 5_000), ("hit", "op", 6_000)] == rows(tester.setWatermark(6))


def test_a_late_row_is_set_aside_and_says_so(stage, keyed):
    """A row at or before the watermark comes out as late, once for an operation however many keys it has."""
    tester, rows = stage(KeyStage(), "tag", "operation", "reason")
    tester.setWatermark(10)
    late = [("watch", 9_000, "op", number, 2, key, 3, 99_000) for number, key in enumerate("ab")]
    assert [("late", "op", "older than the watermark")] == rows(tester.testInPandas(0, keyed(*late)))


def test_an_operation_expires_when_the_watermark_passes_its_deadline(stage, handed):
    """The deadline's timer fires with the watermark, not before, and once."""
    tester, rows = stage(OperationStage(), "operation", "outcome", "finished_us")
    assert [] == rows(tester.testInPandas(0, handed(("open", "op", 0, 1, 5_000, 9_000))))
    assert [] == rows(tester.setWatermark(8))
    assert [("op", "expired", 9_000)] == rows(tester.setWatermark(9))
    assert [] == rows(tester.setWatermark(50))


def test_rows_set_aside_pass_through_the_second_stage(stage, handed):
    """Late and malformed rows reach the output unchanged."""
    tester, rows = stage(OperationStage(), "part", "operation")
    assert [("late", "op")] == rows(tester.testInPandas(0, handed(("late", "op", 0, 0, 5_000, 0))))
