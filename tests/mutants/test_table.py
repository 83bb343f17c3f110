"""The table of mutants names what is there. The mutants themselves run by ``python -m tests.mutants``."""

from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guarantee)
def test_line_and_test_of_a_mutant_exist(mutant):
    """The line stands once in its file, and the test is where the table says. Otherwise the table must follow."""
    file, _, name = mutant.test.partition("::")

    assert 1 == (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.line)
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
