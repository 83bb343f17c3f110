"""Which ends are normal: what a type says in its records, and what the options of a command say instead.

A record's ``normal_ends`` is what its type said when the record was written: ``expired``, ``cancelled``, both with a
space between, or null. One record is enough: the end is normal for all operations of that type in that purgatory. So
what the type says now also counts for records that were written before it said so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import attrs

from purgatory.journal.records import OUTCOMES
from purgatory.journal.records.errors import JournalSetting

EXPIRED, CANCELLED = OUTCOMES[2:4]

#: By option: the parameter of ``Normal``, the outcome, and what the command does with it.
_OPTIONS: Final = {
    "--expiry-normal": ("expiry", EXPIRED, "count each expiry of this type as a good end (may be repeated)"),
    "--cancel-normal": ("cancel", CANCELLED, "count each cancellation of this type as a good end (may be repeated)"),
    "--expiry-failure": ("expiry_failure", EXPIRED, "count each expiry of this type as a failure (may be repeated)"),
    "--cancel-failure": ("cancel_failure", CANCELLED, "count each cancellation of this type as a failure, too"),
}


def _types(names: Collection[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen(kw_only=True)
class Normal:
    """The ends that are normal. An option counts more than what records say.

    Args:
        expiry: types whose operations end by their deadline as a rule, as long polls do.
        cancel: types whose operations end by a cancellation as a rule, as leases do.
        expiry_failure: types for which an expiry is a failure, whatever their records say.
        cancel_failure: types for which a cancellation is one.
        said: what records say: purgatory, type, and outcome.

    Raises:
        JournalSetting: a type is named in two opposite ways.
    """

    expiry: frozenset[str] = attrs.field(default=frozenset(), converter=_types)
    cancel: frozenset[str] = attrs.field(default=frozenset(), converter=_types)
    expiry_failure: frozenset[str] = attrs.field(default=frozenset(), converter=_types)
    cancel_failure: frozenset[str] = attrs.field(default=frozenset(), converter=_types)
    said: frozenset[tuple[str, str, str]] = frozenset()

    def __attrs_post_init__(self) -> None:
        for name in ("expiry", "cancel"):
            both = getattr(self, name) & getattr(self, f"{name}_failure")
            if both:
                raise JournalSetting(f"--{name}-failure", min(both), f"another type than --{name}-normal")

    @classmethod
    def of(cls, options: argparse.Namespace) -> Normal:
        """What the options say that ``add_normal`` added."""
        return cls(**{name: getattr(options, _dest(option)) for option, (name, *_) in _OPTIONS.items()})

    def saying(self, records: Iterable[tuple[str, str, str | None]]) -> Normal:
        """The same with what records say: purgatory, type, and ``normal_ends``."""
        said = {(purgatory, kind, end) for purgatory, kind, ends in records for end in (ends or "").split()}
        return attrs.evolve(self, said=self.said | said)

    def renamed(self, rename: Callable[[str], str]) -> Normal:
        """The same for other spellings of all names."""
        options: dict[str, Any] = {name: map(rename, getattr(self, name)) for name, *_ in _OPTIONS.values()}
        return attrs.evolve(self, **options, said=frozenset((rename(p), rename(t), end) for p, t, end in self.said))

    def __call__(self, kind: tuple[str, str], outcome: str) -> bool:
        """Whether the outcome is a normal end of a purgatory's type."""
        for name, which, _ in _OPTIONS.values():
            if which == outcome and kind[1] in getattr(self, name):
                return not name.endswith("failure")
        return (*kind, outcome) in self.said

    def has_any(self, kind: tuple[str, str]) -> bool:
        """Whether an expiry or a cancellation is a normal end of a purgatory's type."""
        return self(kind, EXPIRED) or self(kind, CANCELLED)

    def pairs(self, outcome: str) -> list[tuple[str | None, str]]:
        """Purgatory and type for which the outcome is a normal end, each once. The purgatory None is every one."""
        named = {name for field, which, _ in _OPTIONS.values() if which == outcome for name in getattr(self, field)}
        every = [(None, name) for name in sorted(named) if self(("", name), outcome)]
        return [*every, *sorted((p, t) for p, t, end in self.said if end == outcome and t not in named)]

    def options(self) -> list[tuple[str, frozenset[str]]]:
        """Each option, and the types that it named."""
        return [(option, getattr(self, name)) for option, (name, *_) in _OPTIONS.items()]


#: What a command without options knows before it has read a record.
UNSAID: Final = Normal()


def _dest(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def add_normal(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which ends are normal, instead of what the records say."""
    for option, (*_, how) in _OPTIONS.items():
        parser.add_argument(option, action="append", default=[], metavar="TYPE", help=how)
