"""Settings of a session by the number of records that a command reads.

Few records are over before the JVM has compiled its code, so little is compiled: one compiler instead of two, and for
very few, Spark interprets its expressions. Adaptive execution runs each exchange as a job of its own, which costs more
than it gains for small relations. Settings of the user win over all of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

#: Records up to which Spark interprets its expressions and starts no web page of its own: the work is soon over.
_FEW: Final = 200_000
#: Records up to which one compiler does: beyond, the slower code costs more than was saved.
_MANY: Final = 3_000_000
_SHORT: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


@attrs.frozen
class SizeDefaults:
    """Settings that apply where nothing else was set: of the session, and options of the JVM."""

    settings: Mapping[str, str]
    java_options: str = ""


#: A second report of a session finds all its code compiled: Spark's own cache holds 100 classes.
DEFAULTS: Final = SizeDefaults({"spark.sql.codegen.cache.maxEntries": "5000"})


def defaults_for(records: int | None) -> SizeDefaults:
    """Return the settings for a number of records (None: unknown)."""
    settings = dict(DEFAULTS.settings)
    if records is None or records > _MANY:
        return SizeDefaults(settings)
    settings |= {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    if records <= _FEW:
        settings |= _SHORT
    return SizeDefaults(settings, "-XX:TieredStopAtLevel=1")
