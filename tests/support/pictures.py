"""Draw the pictures of the concepts page: ``python -m tests.support.pictures``.

``wheel.svg`` shows what a real ``TimingWheel`` does with four tasks, tick by tick. ``flows.svg`` has the steps of the
core's own functions, in the words of their numbered comments. ``tests/unit/test_pictures.py`` draws both again and
compares, so neither can tell of a rebuilt core what is not true any more.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import attrs

from timer import MockTimer, TimerTask

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"

STYLE = """<style>
  text { font: 15px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2937 }
  .h { font-weight: 600; font-size: 17px }  .s { font-size: 13.5px; fill: #57534e }  .m { text-anchor: middle }
  .c { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 14.5px }
  .w { fill: #ffffff; font-weight: 600 }  .p { fill: #d6d3d1 }
</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">\
<path d="M0 0 8 4 0 8z" fill="#6b7280"/></marker></defs>"""
#: Fill and stroke.
PLAIN, USER = ("#ffffff", "#d6d3d1"), ("#dcfce7", "#16a34a")
TIMER, DARK = ("#e0f2f1", "#0f766e"), ("#1f2937", "#1f2937")
LEVELS = (("#e0f2f1", "#0f766e"), ("#e7eef9", "#1d4ed8"), ("#f1eafa", "#7c3aed"))


def svg(width: int, height: int, title: str, description: str, parts: list[str]) -> str:
    """A picture of these parts on a card."""
    card = f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="14" fill="#fdfcf9" stroke="#e5e0d5"/>'
    view, size = f"0 0 {width} {height}", f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" {size} role="img" aria-labelledby="t d">',
            f'<title id="t">{title}</title>\n<desc id="d">{description}</desc>',
            *(STYLE, card, *parts, "</svg>\n"),
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{words}</text>'


def box(x: float, y: float, width: float, height: float, colours: tuple[str, str]) -> str:
    """A rounded box."""
    fill, stroke = colours
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{stroke}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """An arrow between two points."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="#6b7280" stroke-width="1.6" marker-end="url(#a)"/>'


# -- the three flows


@attrs.frozen
class Step:
    """A numbered step of a function of the core: its comment is what the picture says."""

    module: str
    function: str
    number: int

    @property
    def words(self) -> str:
        """The comment, without its number."""
        source = (ROOT / self.module).read_text(encoding="utf-8")
        body = source[source.index(f"    def {self.function}(") :]
        (words,) = re.findall(rf"^ +# {self.number}\. (.*)$", body.partition("\n    def ")[0], re.MULTILINE)
        return str(words)


@attrs.frozen
class Flow:
    """A row of boxes: what each is called, what happens there, and whose code runs."""

    name: str
    where: str
    colour: str
    boxes: list[tuple[str, Step | str, tuple[str, str]]]


PARKING, OPERATION = "purgatory/_core/parking.py", "purgatory/_core/operation.py"
FLOWS = (
    Flow(
        "Park",
        "try_complete_else_watch(operation, watch_keys), on the caller’s thread",
        "#b45309",
        [
            ("the turn", Step(PARKING, "_park", 1), PLAIN),
            ("try_complete()", Step(PARKING, "_park", 2), USER),
            ("watch keys", Step(PARKING, "_park", 4), PLAIN),
            ("try_complete()", Step(PARKING, "_park", 5), USER),
            ("the timer", Step(PARKING, "_park", 6), TIMER),
        ],
    ),
    Flow(
        "Complete",
        "check_and_complete(key), on the thread that caused the event",
        "#15803d",
        [
            ("the watch key", "the operations parked under it, in order of arrival", PLAIN),
            ("the turn", Step(OPERATION, "maybe_try_complete", 1), PLAIN),
            ("try_complete()", "whether the condition holds now", USER),
        ],
    ),
    Flow(
        "Expire",
        "on the thread of the reaper, then on a thread of the executor",
        "#b91c1c",
        [
            ("the reaper", "removes the buckets that are due from the wheel", TIMER),
            ("the executor", "runs their tasks, the earliest deadline first", TIMER),
            ("the turn", "as for a check, so that expiry and check exclude each other", PLAIN),
            ("expiry", Step(OPERATION, "_op_check_now", 1), PLAIN),
        ],
    ),
    Flow(
        "The end",
        "on the one thread to which force_complete() returns True",
        "#1f2937",
        [
            ("the outcome", Step(OPERATION, "_op_end", 2), DARK),
            ("the timer", Step(OPERATION, "_op_remove", 1), TIMER),
            ("watch keys", Step(OPERATION, "_op_remove", 2), PLAIN),
            ("on_complete()", "exactly once", USER),
            ("on_expiration()", "only if it expired", USER),
        ],
    ),
)
#: The boxes of a row whose words need something before them to be read alone.
PREFIX = {("The end", "the timer"): "remove it ", ("The end", "watch keys"): "remove it "}
WIDTH, BOX, GAP, ROW = 952, 165, 18, 152


def flows() -> str:
    """The three flows and their common end."""
    parts = []
    for index, flow in enumerate(FLOWS):
        top = 20 + index * ROW
        parts += [box(20, top, 4, 126, (flow.colour, flow.colour))]
        parts += [f'<text class="h" x="36" y="{top + 16}" style="fill:{flow.colour}">{flow.name}</text>']
        parts += [text(36 + 11 * len(flow.name) + 16, top + 16, flow.where, "s")]
        for place, (name, what, colours) in enumerate(flow.boxes):
            x, y = 36 + place * (BOX + GAP), top + 32
            words = PREFIX.get((flow.name, name), "") + (what.words if isinstance(what, Step) else what)
            is_dark = colours == DARK
            parts += [box(x, y, BOX, 94, colours)]
            kind = "m c" if name.endswith(")") else "m"
            parts += [text(x + BOX / 2, y + 22, name, f"{kind} w" if is_dark else kind)]
            for line, part in enumerate(textwrap.wrap(words, 22)):
                parts += [text(x + BOX / 2, y + 41 + 16 * line, part, "m s p" if is_dark else "m s")]
            if place:
                parts += [arrow(x - GAP + 1, y + 47, x - 2, y + 47)]
    bottom = 20 + len(FLOWS) * ROW
    parts += [
        text(
            36,
            bottom + 8,
            "Green: your code. Blue-green: the timer. A check that completes the operation, an expiry and",
            "s",
        ),
        text(
            36,
            bottom + 26,
            "force_complete() lead to the end. No hook runs while a lock of the library is held.",
            "s",
        ),
    ]
    description = " ".join(f"{flow.name}: {', '.join(name for name, _, _ in flow.boxes)}." for flow in FLOWS)
    return svg(WIDTH, bottom + 44, "The three flows: park, complete, expire", description, parts)


# -- the wheel


class Ping(TimerTask):
    """A task with a name, which notes the tick at which it ran."""

    def __init__(self, name: str, delay_ms: int, ran: list[str]) -> None:
        super().__init__(delay_ms)
        self.name, self.ran = name, ran

    def run(self) -> None:
        """Note it."""
        self.ran.append(self.name)


@attrs.frozen
class Example:
    """What a wheel did: its rings at the beginning, where its tasks were, and each move of a task.

    Attributes:
        spans: the ticks per bucket of each level.
        buckets: the level and the first tick of each task's bucket, at the beginning.
        moves: tick, task, and the level and first tick of its new bucket. None if it ran.
    """

    hand: int
    wheel_size: int
    due: dict[str, int]
    spans: list[int]
    buckets: dict[str, tuple[int, int]]
    moves: list[tuple[int, str, tuple[int, int] | None]]


def example(hand: int = 3, wheel_size: int = 4) -> Example:
    """Four tasks in a real wheel of small rings, until the last one has run."""
    due = {"A": 6, "B": 10, "C": 29, "D": 78}
    ran: list[str] = []
    with MockTimer(wheel_size=wheel_size) as timer:
        timer.advance_clock(hand)
        tasks = {name: Ping(name, tick - hand, ran) for name, tick in due.items()}
        for task in tasks.values():
            timer.add(task)
        wheel = timer._wheel  # noqa: SLF001  # the picture is of its inside

        def buckets() -> dict[str, tuple[int, int]]:
            return {
                task.name: (bucket.level, bucket.first)
                for bucket in wheel.waiting()
                for task in bucket
                if isinstance(task, Ping)
            }

        first = before = buckets()
        spans = [level.span for level in wheel.levels]
        moves: list[tuple[int, str, tuple[int, int] | None]] = []
        for tick in range(hand + 1, max(due.values()) + 1):
            timer.advance_clock(1)
            now = buckets()
            moves += [(tick, name, now.get(name)) for name in before if before[name] != now.get(name)]
            before = now
    assert list(due) == ran
    return Example(hand, wheel_size, due, spans, first, moves)


def wheel() -> str:
    """The rings of a wheel, the tasks in them, and how one of them moves."""
    shown = example()
    parts = [text(24, 36, f"A wheel of {len(shown.spans)} levels at tick {shown.hand}", "h")]
    cell, left, tall = 92, 24, 62
    for level, span in enumerate(shown.spans):
        y = 62 + level * 112
        light, strong = LEVELS[level]
        parts += [f'<circle cx="{left + 7}" cy="{y + 5}" r="7" fill="{strong}"/>']
        unit = "1 tick" if span == 1 else f"{span} ticks"
        parts += [text(left + 22, y + 10, f"Level {level}: {unit} per bucket", "")]
        start = shown.hand // span
        for n in range(start, start + 2 * shown.wheel_size):
            first, x = n * span, left + (n - start) * cell
            names = [name for name, bucket in shown.buckets.items() if bucket == (level, first)]
            label = f"{first}" if span == 1 else f"{first}–{first + span - 1}"
            parts += [box(x, y + 22, cell - 6, tall, (strong, strong) if names else (light, light))]
            under = 46 if names or n == start else 59
            parts += [text(x + (cell - 6) / 2, y + under, label, "m w" if names else "m")]
            if names:
                parts += [text(x + (cell - 6) / 2, y + 70, ", ".join(names), "m w")]
            elif n == start:
                parts += [text(x + (cell - 6) / 2, y + 70, "the hand", "m s")]
    y = 62 + len(shown.spans) * 112 + 18
    parts += [text(left, y, "What happens next", "h")]
    for line, (tick, name, bucket) in enumerate(shown.moves):
        if bucket is None:
            does = f"{name} is due, and runs"
        else:
            first, span = bucket[1], shown.spans[bucket[0]]
            label = f"bucket {first}" if span == 1 else f"bucket {first}–{first + span - 1}"
            does = f"{name} moves to {label} of level {bucket[0]}"
        column, row = divmod(line, -(-len(shown.moves) // 2))
        x, at = left + column * 370, y + 28 + row * 24
        parts += [text(x, at, f"tick {tick}", "s"), text(x + 70, at, does, "")]
    height = y + 28 + -(-len(shown.moves) // 2) * 24 + 4
    due = ", ".join(f"{name} at {tick}" for name, tick in shown.due.items())
    description = f"Three rows of eight buckets. Tasks are due: {due}. A list of the ticks at which they move and run."
    return svg(left + 2 * shown.wheel_size * cell + 18, height, "A hierarchical timing wheel", description, parts)


PICTURES = {"flows.svg": flows, "wheel.svg": wheel}


def main() -> int:
    """Draw them all."""
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
