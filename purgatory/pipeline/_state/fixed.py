"""The settings that the state of a query fixes: they decide where its rows are, and when a key is forgotten.

Each bucket's state has them beside its content. So nothing else needs to be written into a checkpoint, and a query that
was started by whatever program fails at the first bucket that has others.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from purgatory.journal.records.errors import reduced

#: The version of the semantics and of the state's form. A checkpoint of another version is rejected.
SEMANTICS: Final = 7


class CheckpointDiffers(ValueError):
    """A checkpoint that these settings or this version cannot continue."""

    __reduce__ = reduced

    def __init__(self, checkpoint: str, differences: str) -> None:
        super().__init__(
            f"{checkpoint} was started with {differences}: use these settings, or a new checkpoint and a new output"
        )


@attrs.frozen
class Fixed:
    """The settings that must not change while a checkpoint exists."""

    buckets: int
    keep_us: int | None = None
    semantics: int = SEMANTICS

    def dump(self) -> str:
        """The settings as the state has them."""
        return json.dumps(attrs.asdict(self))

    def check(self, stored: str, checkpoint: str = "the checkpoint") -> None:
        """Compare these settings with those of a state.

        Raises:
            CheckpointDiffers: they are others.
        """
        other = json.loads(stored)
        mine = attrs.asdict(self)
        differences = [f"{name} {other.get(name)}, not {mine[name]}" for name in mine if other.get(name) != mine[name]]
        if differences:
            raise CheckpointDiffers(checkpoint, ", ".join(differences))
