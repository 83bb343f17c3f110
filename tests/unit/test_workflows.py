"""What a stranger sees before the code: workflows of the continuous integration, and subjects of commits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT, ended

SUBJECT = ROOT / ".ci" / "subject.sh"


def git(*arguments, folder):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def test_workflows_are_sound():
    """zizmor finds nothing: actions are pinned by hash, and no credentials stay in a checkout."""
    zizmor = Path(sys.executable).with_name("zizmor")
    if not zizmor.exists() and os.environ.get("CI") != "true":
        pytest.skip("zizmor is not installed")
    done = ended(zizmor, "--offline", "--no-progress", "--quiet", ".github")

    assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize(("length", "status"), [(72, 0), (73, 1)])
def test_subject_of_a_commit_is_short(tmp_path, length, status):
    """A message may have a first line of 72 characters. Later lines may be longer."""
    message = tmp_path / "message"
    message.write_text(f"{'x' * length}\n\n{'y' * 100}\n")

    assert status == ended(SUBJECT, message).returncode


def test_subjects_of_a_range_are_checked(tmp_path):
    """Each subject of a range is checked, and that of a commit before it is not."""
    git("init", "-q", folder=tmp_path)
    for subject in ("x" * 80, "short", "y" * 80):
        git("commit", "-q", "--allow-empty", "-m", subject, folder=tmp_path)

    assert 0 == ended(SUBJECT, "HEAD~2..HEAD~1", cwd=tmp_path).returncode
    done = ended(SUBJECT, "HEAD~2..HEAD", cwd=tmp_path)
    assert (1, True, False) == (done.returncode, "y" * 80 in done.stderr, "x" * 80 in done.stderr)


def test_subjects_of_this_branch_are_short():
    """The commits that a branch adds to main have subjects of at most 72 characters."""
    for base in ("origin/main", "main"):
        if ended("git", "rev-parse", "--verify", "--quiet", base).returncode == 0:
            done = ended(SUBJECT, f"{base}..HEAD")
            assert 0 == done.returncode, done.stderr
            return
    pytest.skip("there is no main to compare with")
