"""The sources of the project, for the tests that look at their form."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def sources(*packages, form="*.py"):
    """The files of these packages, in order."""
    return sorted(path for package in packages for path in (ROOT / package).rglob(form))


def module_of(path):
    """A source's dotted name, and whether it is a package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package
