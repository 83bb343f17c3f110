"""Type checkers agree with what users write: the README's and the guides' examples, and a page of code of theirs."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.programs import ended

ROOT = Path(__file__).resolve().parents[3]
PAGES = (
    "README.md",
    "docs/guide.md",
    "docs/guide-more.md",
    "docs/asyncio.md",
    "docs/web.md",
    *(f"docs/recipes/{name}.md" for name in ("lean", "tenants", "trio", "websockets")),
)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Settings of a user's project, in strict mode.
STRICT = """{{
  "include": ["*.py"], "typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [{root!r}],
  "reportUnknownLambdaType": false
}}"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with every block of the pages, each a module of its own, and the page of code."""
    folder = tmp_path_factory.mktemp("project")
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if "import " in match[1]:  # else it goes on from one before
                line = text.count("\n", 0, match.start(1)) + 1
                (folder / f"{Path(page).stem}_line_{line}.py").write_text(match[1], encoding="utf-8")
    shutil.copy(Path(__file__).with_name("page.py"), folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_agrees(project):
    """mypy, strict, finds nothing in what users write."""
    modules = sorted(path.name for path in project.glob("*.py"))
    # Of a library that is installed mypy reports nothing. Ours is read as a source, and what it imports has no types.
    (project / "mypy.ini").write_text("[mypy]\n[mypy-pyarrow.*]\nignore_missing_imports = true\n", encoding="utf-8")
    options = "--strict", "--config-file=mypy.ini", "--no-error-summary"
    done = ended(sys.executable, "-m", "mypy", *options, *modules, cwd=project, MYPYPATH=str(ROOT))

    assert ("", "") == (done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_agrees(project):
    """pyright, strict, finds nothing in what users write."""
    pyright = shutil.which("pyright")
    if pyright is None and os.environ.get("CI") != "true":
        pytest.skip("pyright is not installed")
    (project / "pyrightconfig.json").write_text(STRICT.format(root=str(ROOT)).replace("'", '"'), encoding="utf-8")
    done = ended(pyright, "--pythonpath", sys.executable, cwd=project)

    assert 0 == done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", ["ty", "pyrefly"])
def test_younger_checkers_agree(project, checker):
    """ty and pyrefly find nothing in what users write, and both find a mistake."""
    options = {"ty": ("--python", sys.prefix), "pyrefly": ("--python-interpreter-path", sys.executable)}
    command = Path(sys.executable).with_name(checker), "check", *options[checker]
    mistake = project / "mistake.txt"
    mistake.write_text(
        "from purgatory import DelayedOperationPurgatory\nDelayedOperationPurgatory(7)\n", encoding="utf-8"
    )

    done = ended(*command, *sorted(path.name for path in project.glob("*.py")), cwd=project, PYTHONPATH=str(ROOT))
    assert 0 == done.returncode, done.stdout + done.stderr
    wrong = ended(*command, mistake.rename(project / "mistake.py"), cwd=project, PYTHONPATH=str(ROOT))
    (project / "mistake.py").unlink()
    assert 1 == wrong.returncode, wrong.stdout + wrong.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", ["timer", "purgatory"])
def test_every_public_type_is_known(package, tmp_path):
    """pyright knows the type of everything that a package exports, and guesses none."""
    pyright = shutil.which("pyright")
    if pyright is None and os.environ.get("CI") != "true":
        pytest.skip("pyright is not installed")
    # A command line for an interpreter is ignored here. The first Python on the PATH counts.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = "--verifytypes", package, "--ignoreexternal"
    done = ended(pyright, *options, cwd=tmp_path, PATH=path, PYTHONPATH=str(ROOT))

    assert "Type completeness score: 100%" in done.stdout, done.stdout
