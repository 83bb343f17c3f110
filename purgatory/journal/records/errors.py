"""The errors of a journal: one class per mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from timer import _errors

#: Pickles an error by its text and attributes. Here for the pipeline, which knows no timer.
reduced: Callable[[BaseException], tuple[Any, ...]] = _errors.reduced


class JournalError(Exception):
    """Base class of the errors that a journal raises."""

    __reduce__ = reduced


class JournalLocked(JournalError, RuntimeError):
    """Another writer holds the folder."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"{folder} is already being written by process {holder}: give each writer a folder of its own")
        self.folder = folder
        self.holder = holder


class JournalClosed(JournalError, RuntimeError):
    """The journal was closed before this call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"the journal in {folder} is closed: open a new one on the same folder to go on with its sequence"
        )
        self.folder = folder


class JournalSetting(JournalError, ValueError):
    """A journal was created with an argument that cannot work.

    Attributes:
        setting: the parameter's name.
        value: the value given.
    """

    def __init__(self, setting: str, value: object, wanted: str) -> None:
        super().__init__(f"{setting} must be {wanted}, got {value!r}")
        self.setting = setting
        self.value = value


class JournalClock(JournalError, TypeError):
    """The clock that a journal was given doesn't answer whole nanoseconds.

    Attributes:
        answer: what it answered.
    """

    def __init__(self, answer: object) -> None:
        super().__init__(
            f"now_ns must answer whole nanoseconds, as time.monotonic_ns does; this clock answers {answer!r}"
        )
        self.answer = answer


class JournalLevel(JournalError, ValueError):
    """A level in a trace isn't a whole number of 64 bits.

    Attributes:
        key: the label of the key whose level it is.
        level: what was given.
    """

    def __init__(self, key: str, level: object) -> None:
        super().__init__(f"a level is a whole number of 64 bits, as an offset is; that of {key} is {level!r:.80}")
        self.key = key
        self.level = level


class JournalFormat(JournalError, ValueError):
    """The folder or file holds something this reader doesn't understand."""


class JournalDamaged(JournalFormat):
    """A file can't be read, or doesn't hold what was written to it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged or cut short, and can't be read: {reason}")
        self.name = name
        self.reason = reason


class JournalMissing(JournalError, FileNotFoundError):
    """There is no journal where one was looked for."""

    def __init__(self, folder: Path) -> None:
        why = "it holds no segment" if folder.exists() else "it does not exist"
        inside = sorted({segment.parent.name for segment in folder.glob("*/journal-*")})
        hint = f"name one of those in it: {', '.join(inside)}" if inside else "name a folder that a Journal wrote"
        super().__init__(f"no journal in {folder}: {why}; {hint}")
        self.folder = folder
