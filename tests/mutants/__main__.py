"""
The mutation experiment: remove the line that upholds a guarantee, and see a test fail.

Every mutant of ``table.py`` is applied to a copy of the tree, and the tests that stand for its guarantee are run there.
A mutant that they don't kill means that no test would notice if the guarantee were lost. One whose line isn't found
means that the code has moved on and the table must follow. Either is an error.

    python -m tests.mutants                 all of them
    python -m tests.mutants never-early     those whose name or guarantee contains the words
    python -m tests.mutants --docs          all, and write the table into docs/contributors/locking.md
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contributors" / "locking.md"
BEGIN, END = "<!-- mutants -->", "<!-- /mutants -->"
COPIED = ("timer", "purgatory", "tests", "pyproject.toml")
#: A mutant may well make a test hang. That kills it too.
TIMEOUT_S = 120


def run(tree: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether the tests pass in a tree, and what pytest said last."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--timeout=15",
        *tests,
    ]
    # A test of a mutant may wait for something that never comes, so its patience is short here.
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PURGATORY_PURE": "1",  # the lines are Python's
        "TEST_PATIENCE_S": "5",
    }
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, "hangs"
    lines = [line for line in done.stdout.strip().splitlines() if not line.startswith("20")]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout}{done.stderr}")
    return done.returncode == 0, "; ".join(failed or lines[-1:])


def copy(into: Path) -> Path:
    """A copy of the files that the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, into / name)
    return into


def attempt(mutant: Mutant, trees: SimpleQueue[Path]) -> str:
    """The fate of one mutant: killed, survived, or not found."""
    tree = trees.get()
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8")
    try:
        if source.count(mutant.line) != 1:
            return "not found" if mutant.line not in source else "found more than once"
        path.write_text(source.replace(mutant.line, mutant.instead), encoding="utf-8")
        passed, _ = run(tree, [mutant.test])
        return "survived" if passed else "killed"
    finally:
        path.write_text(source, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()  # it may have been compiled within the same second, and be of the same size
        trees.put(tree)


def shown(text: str, other: str) -> str:
    """The difference of two texts, on one line of a table."""
    rest = [line.strip() for line in other.splitlines()]
    lines = [line.strip() for line in text.splitlines() if line.strip() and line.strip() not in rest]
    return " ".join(f"`{line}`" for line in lines).replace("|", "\\|") or "(nothing)"


def write_page(mutants: list[Mutant]) -> None:
    """Put the table between its marks."""
    rows = ["| guarantee | test that fails without it |", "|---|---|"]
    rows += [f"| {mutant.guarantee} | `{mutant.test.partition('::')[2]}` |" for mutant in mutants]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(rows) + f"\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.strip().splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose guarantee, file or test contains one of these")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/contributors/locking.md")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    options = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not options.words or any(word in f"{mutant.guarantee} {mutant.file} {mutant.test}" for word in options.words)
    ]
    if not chosen:
        parser.error("no mutant contains these words")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as executor:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            tree = Path(folder, str(number))
            tree.mkdir()
            trees.put(copy(tree))
        passed, said = run(tree, sorted({mutant.test for mutant in chosen}))
        if not passed:
            print(f"the tests fail without any mutant: {said}", file=sys.stderr)
            return 1
        fates = []
        for mutant, fate in zip(chosen, executor.map(lambda mutant: attempt(mutant, trees), chosen), strict=True):
            fates.append(fate)
            print(
                f"{fate:9}  {mutant.guarantee:55.55}  {mutant.file}  {shown(mutant.line, mutant.instead)[:70]}",
                flush=True,
            )
    killed = fates.count("killed")
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    if options.docs and killed == len(MUTANTS):
        write_page(list(MUTANTS))
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
