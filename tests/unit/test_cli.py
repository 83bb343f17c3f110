"""The command ``purgatory``."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import purgatory
from purgatory import DelayedOperationPurgatory, _cli
from purgatory._distribution import missing
from purgatory.journal import Journal
from tests.support import output_of, park, raising
from tests.support.programs import ended

ROOT = Path(__file__).resolve().parents[2]


def test_help_lists_the_commands(capsys):
    """``purgatory --help`` names every part."""
    assert 0 == _cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("journal", "pipeline", "top"))


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_an_unknown_command_is_refused(arguments, capsys):
    """No command, or an unknown one, gives the usage and exit status 2."""
    assert 2 == _cli.main(arguments)
    assert "usage: purgatory COMMAND" in capsys.readouterr().err


#: Runs a command in an interpreter that has the base install and nothing else.
BARE = """
import sys
missing = {missing!r}

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
sys.argv = ["purgatory", *{arguments!r}]
from purgatory._cli import main
sys.exit(main())
"""
EXTRAS = ("pyspark", "pandas", "pyarrow", "google", "rich", "starlette", "uvicorn")


def bare(*arguments, missing=EXTRAS):
    """What a command says on standard error, without what the extras bring. It fails with status 2."""
    return output_of(BARE.format(missing=missing, arguments=arguments), status=2)[1]


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("pipeline", "report", "--journal", "{folder}", "--out", "{folder}/out"), "pyarrow", "report"),
        (("pipeline", "monitor", "--journal", "{folder}"), "pyarrow", "spark"),
        (("journal", "verify", "{folder}"), "pyarrow", "parquet"),
        (("top", "http://127.0.0.1:9/"), "starlette", "console"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else value,
)
def test_missing_extra_is_named_in_one_line(arguments, module, extra, tmp_path):
    """Where an extra is missing, at once or in the middle of a command, one line says what installs it."""
    with Journal(tmp_path) as journal, DelayedOperationPurgatory("p", reaper_enabled=False) as waiting:
        waiting.attach(journal.observer("p"))
        park(waiting, ready=True)

    assert (
        f"purgatory {arguments[0]}: No module named {module!r}; "
        f"install it with: pip install 'delayed-operation-purgatory[{extra}]'\n"
    ) == bare(*(argument.format(folder=tmp_path) for argument in arguments))


@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [
        ("purgatory.web", "starlette", "web"),
        ("purgatory.console", "starlette", "console"),
        ("purgatory.console", "uvicorn", "console"),
        ("purgatory.otel", "opentelemetry", "otel"),
        *(("purgatory.pipeline.source", absent, "spark") for absent in ("pyspark", "numpy", "pyarrow")),
    ],
)
def test_import_names_the_missing_extra(module, absent, extra):
    """A part that is imported without its extra says which one it is, in the error that is a missing module's."""
    program = BARE.format(missing=[absent], arguments=[]).partition("from purgatory._cli")[0] + f"import {module}"

    assert re.fullmatch(
        rf"(\w+\.)*MissingExtra: No module named '{absent}\b.*'; "
        rf"install it with: pip install 'delayed-operation-purgatory\[{extra}\]'",
        output_of(program, status=1)[1].splitlines()[-1],
    )


def test_broken_module_of_ours_is_no_missing_extra():
    """A missing part of the library itself is not blamed on an extra."""
    error = ModuleNotFoundError("No module named 'purgatory.web._polls'", name="purgatory.web._polls")
    assert error is missing(error, "web")


def test_system_that_lacks_something_is_named_in_one_line():
    """A missing module of the standard library is not blamed on an extra. The line says which systems do."""
    said = bare("journal", "verify", ".", missing=("fcntl",))
    assert "purgatory journal: No module named 'fcntl'; this needs Linux or macOS\n" == said


def test_failing_import_of_our_own_is_no_matter_of_extras(monkeypatch):
    """A broken module of the library itself isn't taken for a missing extra."""
    error = ImportError("cannot import name 'x'", name="purgatory.journal")
    monkeypatch.setattr(_cli.importlib, "import_module", raising(error))
    with pytest.raises(ImportError, match="cannot import name"):
        _cli.main(["journal", "verify"])


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version_is_that_of_the_distribution(option, capsys):
    """``purgatory --version`` names the distribution and its version, which is ``purgatory.__version__``."""
    assert 0 == _cli.main([option])
    assert f"delayed-operation-purgatory {purgatory.__version__}\n" == capsys.readouterr().out


def test_version_is_what_is_built():
    """The version that a wheel of this tree carries is the package's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = project["tool"]["hatch"]["version"]

    assert ["version", "readme"] == project["project"]["dynamic"]
    assert purgatory.__version__ == re.search(source["pattern"], (ROOT / source["path"]).read_text("utf-8"))["version"]


def test_the_rest_of_the_line_goes_to_the_part(tmp_path, capsys):
    """What follows the command is the part's own."""
    assert 2 == _cli.main(["journal", "verify", str(tmp_path)])
    assert "no journal in" in capsys.readouterr().err


def test_it_is_a_module_too():
    """``python -m purgatory`` is the command."""
    assert "usage: purgatory COMMAND" in ended(sys.executable, "-m", "purgatory", "--help").stdout


def test_only_the_part_asked_for_is_imported():
    """Listing the commands imports no Spark, no pandas, no web server."""
    program = "import sys; from purgatory._cli import main; main(['--help']); print({slow} & set(sys.modules))"
    assert output_of(program.format(slow={"pyspark", "pandas", "uvicorn"}))[0].endswith("set()\n")
