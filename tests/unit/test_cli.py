"""The command `purgatory`."""

import subprocess
import sys

import pytest

from purgatory import _cli


def test_help_lists_the_commands(capsys):
    """`purgatory --help` names every part."""
    assert 0 == _cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("journal", "pipeline", "top"))


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_an_unknown_command_is_refused(arguments, capsys):
    """No command, or an unknown one, gives the usage and exit status 2."""
    assert 2 == _cli.main(arguments)
    assert "usage: purgatory COMMAND" in capsys.readouterr().err


def test_a_part_without_its_extra_says_what_to_install(monkeypatch, capsys):
    """Where an extra is missing, the message has the line that installs it."""

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(_cli.importlib, "import_module", missing)
    assert 2 == _cli.main(["pipeline", "report"])
    assert "pip install 'delayed-operation-purgatory[spark]'" in capsys.readouterr().err


def test_the_rest_of_the_line_goes_to_the_part(tmp_path, capsys):
    """What follows the command is the part's own."""
    assert 2 == _cli.main(["journal", "verify", str(tmp_path)])
    assert "no journal in" in capsys.readouterr().err


def test_it_is_a_module_too():
    """`python -m purgatory` is the command."""
    run = subprocess.run([sys.executable, "-m", "purgatory", "--help"], capture_output=True, text=True, check=True)
    assert "usage: purgatory COMMAND" in run.stdout


def test_only_the_part_asked_for_is_imported():
    """Listing the commands imports no Spark, no pandas, no web server."""
    program = (
        "import sys; from purgatory._cli import main; main(['--help']); print({'pyspark','pandas'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("set()\n")
