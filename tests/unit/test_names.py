"""Other people's packages and files of our names: the import says what it found in the place of ours."""

import sys

import pytest

from tests.support.programs import ROOT, ended


def run(folder, name="purgatory"):
    """An import in a user's folder, which comes before ours on the path."""
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; import {name}"
    return ended(sys.executable, "-c", program, cwd=folder)


@pytest.mark.parametrize("name", ["timer.py", "timer/__init__.py"])
def test_foreign_timer_is_named(tmp_path, name):
    """A module, or an installed package, of the name ``timer`` is named with its file and what to do about it."""
    found = tmp_path / name
    found.parent.mkdir(exist_ok=True)
    found.write_text("def start(): ...\n", encoding="utf-8")

    error = run(tmp_path).stderr.splitlines()[-1]

    assert error.startswith("ImportError: purgatory needs the package 'timer' that delayed-operation-purgatory brings")
    assert f"found {found} in its place" in error


def test_folder_named_timer_is_no_obstacle(tmp_path):
    """A folder of that name that holds no package doesn't come before ours."""
    (tmp_path / "timer").mkdir()

    done = run(tmp_path)
    assert (0, "") == (done.returncode, done.stderr)


def test_timer_that_uses_purgatory_is_named(tmp_path):
    """A user's ``timer.py`` that itself imports purgatory is named too."""
    (tmp_path / "timer.py").write_text("import purgatory\n", encoding="utf-8")

    assert f"found {tmp_path / 'timer.py'} in its place" in run(tmp_path, "timer").stderr
