"""The first things that a newcomer meets work: the README's code and the make targets."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import structlog
import structlog.testing

from tests.unit._tree import ROOT

TARGETS = ("help", "run", "test", "check", "cov", "bench", "docs", "soak", "clean")
#: The README's blocks run in programs of their own.
PAGES = [
    f"docs/{name}.md"
    for name in (
        *("index", "concepts", "guide", "guide-more", "tools", "testing", "metrics", "console", "logging", "asyncio"),
        *("recipes/lean", "recipes/tenants", "recipes/trio", "recipes/websockets"),
    )
]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Folders of one person's or one builder's machine, and indexes other than the public one. Put together from
# pieces, so that this file doesn't find itself.
MACHINE = re.compile(
    "|".join(
        [
            *(rf"(?<![\w.])/{folder}/" for folder in ("work", "root", "Users", "workspace", r"home/\w+")),
            r"file:/" + "//(?!path)",
            r"extra-" + "index-url",
        ]
    )
)


def blocks(page):
    """The Python blocks of a page, with the line that each starts on."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(match[1], text.count("\n", 0, match.start(1))) for match in FENCE.finditer(text)]


def run(source, page, line):
    """Execute a block as a module of its own and return what it printed. Tracebacks name the page's lines."""
    printed = io.StringIO()
    config = structlog.get_config()  # which a block may change
    try:
        with contextlib.redirect_stdout(printed), structlog.testing.capture_logs():
            exec(compile("\n" * line + source, page, "exec"), {"__name__": "page"})
    finally:
        structlog.configure(**config)
    return printed.getvalue()


def output(*command, status=0, **options):
    """What a command writes, with this status at its end: to standard output and to standard error."""
    done = subprocess.run(  # noqa: S603  # commands of this project
        command, **{"cwd": ROOT, **options}, capture_output=True, text=True, check=False, timeout=100
    )
    assert status == done.returncode, done.stderr
    return done.stdout, done.stderr


@pytest.mark.usefixtures("shut_down_after")
@pytest.mark.parametrize(("page", "number"), [(page, number) for page in PAGES for number in range(len(blocks(page)))])
def test_code_on_a_page_runs(page, number):
    """A block of Python in the docs runs as it stands, and what it asserts holds."""
    source, line = blocks(page)[number]

    run(source, page, line)


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_blocks_print_what_the_readme_shows_and_nothing_else(number):
    """In a program of its own, which configures nothing, a block prints what its comments show, and no word more."""
    source, _ = blocks("README.md")[number]
    shown = re.findall(r"print\(.*\)  # (.*)", source)

    assert ["hello"] == shown
    assert ("".join(f"{line}\n" for line in shown), "") == output(sys.executable, "-c", source)


def test_readme_is_short():
    """The README has at most 500 words."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 500


def make(*arguments):
    return output("make", "--no-print-directory", *arguments)[0]


@pytest.mark.parametrize("arguments", [(), ("help",)], ids=["make", "make help"])
def test_help_lists_targets(arguments):
    """``make`` alone and ``make help`` list every target, each with a word on what it does."""
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", make(*arguments), re.MULTILINE))

    assert set(TARGETS) <= set(listed)


LEDGER = "tests/unit/journal/test_ledger.py"
CORE = f"tests/unit/timer tests/unit/purgatory tests/unit/aio tests/unit/faults {LEDGER}"


@pytest.mark.parametrize(
    ("named", "first", "pure"),
    [
        ("tests/unit/timer/test_task.py", "tests/unit/timer/test_task.py", "tests/unit/timer/test_task.py"),
        ("tests/unit/web/test_polls.py", "tests/unit/web/test_polls.py", None),
        ("tests/unit/journal tests/property/", "tests/unit/journal tests/property/", f"{LEDGER} tests/property/"),
        ("tests/unit -k wheel", "tests/unit -k wheel", f"{CORE} -k wheel"),
        ("-k wheel", "-k wheel", f"{CORE} tests/property tests/concurrency -k wheel"),
        ("", "", f"{CORE} tests/property tests/concurrency"),
    ],
)
def test_named_tests_run_where_they_belong(named, first, pure):
    """The tests of the core that ``ARGS`` names run on both implementations, all others on one."""
    runs = [line.split() for line in make("-n", "test", f"ARGS={named}", "JOBS=0").splitlines() if "pytest" in line]
    given = [" ".join(run[run.index("--no-loadscope-reorder") + 1 :]).partition(" ||")[0] for run in runs]

    assert ([first] if pure is None else [first, pure]) == given
    assert [False, True][: len(given)] == ["PURGATORY_PURE=1" in run for run in runs]


def test_ci_runs_no_test_twice():
    """In the run of the continuous integration ``make test`` leaves out the tests of ``make check``."""
    assert "make test CHECKED=1" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "-m quick tests/unit" in make("-n", "check")
    assert '-m "not quick"' in make("-n", "test", "CHECKED=1")
    assert "quick" not in make("-n", "test")


def test_coverage_leaves_out_tests_that_exist():
    """pytest says nothing about a test that it is to leave out and that has another name now."""
    left_out = re.findall(r"--deselect=(\S+)", make("-n", "cov"))
    assert 3 == len(left_out)
    for place in left_out:
        path, _, name = place.partition("::")
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")


def script(name, *arguments, path, status=0):
    """What one of the set-up scripts says on standard error, with nothing on the PATH but what is named."""
    return output(ROOT / ".ci" / name, *arguments, env={"PATH": str(path)}, status=status)[1]


def test_missing_python_is_said_in_a_line(tmp_path):
    """Without a Python that serves there is one line that says what to do, and no environment."""
    said = script("venv.sh", tmp_path / "venv", path=tmp_path, status=1)

    assert re.fullmatch(r"error: no Python >= 3\.11 .*PYTHON=/path/to/python\n", said)
    assert not (tmp_path / "venv").exists()


def test_missing_programs_are_named_in_a_line(tmp_path):
    """Where the set-up can't install what is missing, it names the packages in one line, and fails nothing."""
    for program in ("id", "sed"):
        (tmp_path / program).symlink_to(shutil.which(program))
    (tmp_path / "kcat").symlink_to(shutil.which("true"))

    said = script("setup.sh", "java", "kcat", "chromium", path=tmp_path)

    assert re.fullmatch(r"please install: openjdk-17-jre-headless chromium \(.*\n", said)


@pytest.mark.parametrize(
    ("target", "installed", "left_out"),
    [
        ("run", "examples/broker/pyproject.toml:run --editable .", "spark"),
        ("docs", "--group docs", "spark report delta parquet"),
        ("check", "--group check", None),
        ("test", "--group test", None),
    ],
)
def test_targets_install_what_they_need(target, installed, left_out, tmp_path):
    """A target whose packages are not there installs its own group and extras, and not those of others."""
    (line,) = [line for line in make("-n", target, f"VENV={tmp_path}").splitlines() if "--group" in line]
    extras = set(re.split(r"[\[\],]", line)[1:])

    assert installed in line
    assert ({"spark", "report", "delta"} <= extras) if left_out is None else not extras & set(left_out.split())


def test_source_distribution_has_all_that_there_is():
    """An unpacked sdist has the front door and the files behind it: ``make check`` runs there."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    by_itself = {".gitignore", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}

    included = {name.lstrip("/") for name in table["sdist"]["include"]}
    assert [] == [name for name in included if not (ROOT / name).exists()]
    if (ROOT / ".git").exists():  # else there may be more than belongs to the tree
        assert included == {path.relative_to(ROOT).parts[0] for path in tracked()} - by_itself


def test_wheels_are_tested_away_from_the_sources():
    """Where the packages' sources are beside the tests, pytest imports those and not the wheel."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]

    assert not {"purgatory", "timer", "."} & set(table["test-sources"])
    assert "python -m tests.installed" in table["test-command"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    _, said = output(sys.executable, "-m", "tests.installed", env=environment, status=1)
    assert "is the source beside the tests" in said


def test_changelog_has_a_place_for_news():
    """The changelog has an Unreleased section, first."""
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert "Unreleased" == headings[0]


def test_dependencies_page_names_everything():
    """The page on dependencies has each run-time dependency, extra and group, and no extra that isn't there."""
    page = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    of_extras = [name for requirements in extras.values() for name in requirements]
    names = [re.match(r"[\w-]+", name)[0].lower() for name in project["project"]["dependencies"] + of_extras]
    groups = set(project["dependency-groups"]) - {"dev"}  # which is another name of test

    assert [] == [name for name in names if name not in page.lower()]
    assert {*extras, *groups} == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def tracked():
    """The files of the tree that belong to it: git's, or, without git (an sdist), all that are there."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, timeout=30)
    if listing.returncode == 0:
        return [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]


def texts():
    """The path and the text of each file that is one."""
    for path in tracked():
        with contextlib.suppress(UnicodeDecodeError, FileNotFoundError):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_file_speaks_of_one_machine():
    """No tracked file holds the path of a machine or the address of a private index. Examples' paths are neither."""
    paths = ["/" + "work/main/x", "/" + "home/ann/src", "PYTHON=/path/to/python", "purgatory/work/queue"]
    assert paths[:2] == [path for path in paths if MACHINE.search(path)]
    assert [] == [f"{path}: {match[0]}" for path, text in texts() for match in MACHINE.finditer(text)]


def test_placeholder_of_the_address_stands_in_one_file():
    """The placeholder for the repository's address is in pyproject.toml alone, and CONTRIBUTING names it."""
    placeholder = f"github.com/{'OWNER'}/"

    assert ["pyproject.toml"] == [path for path, text in texts() if placeholder in text]
    assert "OWNER" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_import_is_light():
    """``import purgatory`` imports none of the slow modules: each is imported when it is first needed."""
    slow = {"asyncio", "hashlib", "prometheus_client", "ssl", "structlog"}
    script = f"import sys, purgatory; print(*sorted({slow} & set(sys.modules)))"

    assert ("\n", "") == output(sys.executable, "-c", script)
