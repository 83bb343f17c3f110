"""The settings that a what-if tries, and the choice among them: plain Python over its small tables.

A ``Grid`` says what is tried, and how much of each harm is acceptable. ``choose`` takes the least that stays within
these limits: the shortest timeout, the wheel with the fewest re-insertions, the smallest interval, the fewest shards.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from purgatory.pipeline._summaries.advice import meets
from purgatory.pipeline._summaries.groups import rows_by


class WrongGrid(ValueError):
    """The grid file is invalid."""


@attrs.frozen(kw_only=True)
class Grid:
    """What to try, and the limits for the choice."""

    timeouts_ms: tuple[int, ...] = (100, 250, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
    ticks_ms: tuple[int, ...] = (1, 5, 10)
    wheel_sizes: tuple[int, ...] = (10, 20, 64, 128)
    purge_intervals: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    shards: tuple[int, ...] = (1, 16, 64, 512)
    target_expiry: float = 0.01
    max_late_ms: int = 5
    max_anew: float = 0.01

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """Read a TOML or JSON file. Settings that it leaves out have defaults.

        Raises:
            WrongGrid: it cannot be read, or has an unknown or invalid setting.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            content = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
        except OSError as error:
            raise WrongGrid(f"cannot read the grid file {path}: {error.strerror}; give a TOML or JSON file") from error
        except ValueError as error:
            raise WrongGrid(f"{path}: {error}") from error
        if not isinstance(content, dict):
            raise WrongGrid(f"{path} must hold an object with settings, got {content!r}")
        fields = {field.name: field for field in attrs.fields(cls)}
        if unknown := sorted(set(content) - set(fields)):
            raise WrongGrid(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(fields))}")
        for name, value in content.items():
            wanted = _wanted(name, value, is_list=isinstance(fields[name].default, tuple))
            if wanted:
                raise WrongGrid(f"{path}: {name} must be {wanted}, got {value!r}")
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**given)


def _wanted(name: str, value: object, *, is_list: bool) -> str:
    """What a setting must be, if its value is not."""
    if not is_list:
        return "" if type(value) in (int, float) and value >= 0 else "a number of at least 0"  # type: ignore[operator]
    least = 2 if name == "wheel_sizes" else 1
    if isinstance(value, list) and value and all(type(each) is int and each >= least for each in value):
        return ""
    return f"a list of integers of at least {least}"


@attrs.frozen
class Choice:
    """One setting, of which purgatory or type, its value, and why."""

    setting: str
    of: str
    value: int
    why: str


def choose(tables: Mapping[str, list[dict[str, Any]]], grid: Grid) -> list[Choice]:
    """A configuration, and the reason for each part of it."""
    chosen: list[Choice] = []
    for (purgatory, kind), rows in sorted(rows_by(tables["timeouts"], "purgatory", "type").items()):
        of = f"{purgatory} · {kind}" if kind else purgatory
        known = [row for row in rows if row["expiry_share"] is not None]
        fit = [row for row in known if meets(row["expiry_share"], grid.target_expiry)]
        if not known:
            continue
        row = fit[0] if fit else known[-1]
        share, target = f"{row['expiry_share']:.3g}", f"{grid.target_expiry:.3g}"
        longest = (
            f"the longest tried that the recorded operations can judge. It lets {share} expire, more than {target}"
        )
        why = f"the shortest tried that lets at most {target} expire: {share}" if fit else longest
        chosen.append(Choice("timeout_ms", of, row["timeout_ms"], why))
    if tables["wheels"]:
        most_ms = max(grid.max_late_ms, min(r["late_ms_at_most"] for r in tables["wheels"]))
        prompt = [r for r in tables["wheels"] if r["late_ms_at_most"] <= most_ms]
        row = min(prompt, key=lambda r: (r["reinsertions"], r["levels"], r["wheel_size"]))
        why = (
            f"{row['reinsertions_each']:.2f} re-insertions each, {row['levels']} levels, "
            f"at most {row['tick_ms']} ms late"
        )
        chosen += [Choice(name, "the timer", row[name], why) for name in ("tick_ms", "wheel_size")]
    for purgatory, rows in sorted(rows_by(tables["purges"], "purgatory").items()):
        row = next((r for r in rows if r["anew_share"] <= grid.max_anew), rows[-1])
        why = (
            f"{row['anew']:,} of {row['parked']:,} waits under a key would find it forgotten, and "
            f"at most {row['idle_at_most']:,} keys are remembered while idle"
        )
        chosen.append(Choice("purge_interval", purgatory, row["purge_interval"], why))
    for purgatory, rows in sorted(rows_by(tables["shards"], "purgatory").items()):
        floor = rows[-1]["busiest_key"]
        row = next((r for r in rows if r["busiest_shard"] <= 1.2 * floor), rows[-1])
        why = f"the busiest shard takes {row['busiest_shard']:.3g} of the watches, the busiest key alone {floor:.3g}"
        chosen.append(Choice("shards", purgatory, row["shards"], why))
    return chosen
