#!/usr/bin/env bash
# lowest.sh FOLDER EXTRAS: run the unit tests with the lowest versions that pyproject.toml allows, in an environment in FOLDER.
#
# Only direct dependencies are resolved to their lowest versions. Theirs are the newest that fit, as a user would get them.
set -euo pipefail
folder=$1
extras=$2
uv=$folder/uv/bin/uv

test -x "$uv" || { python3 -m venv "$folder/uv" && "$folder/uv/bin/python" -m pip install --quiet uv; }
"$uv" venv --quiet --clear --python "$(realpath -s "${PYTHON:-$(command -v python3)}")" "$folder/venv"
"$uv" pip install --quiet --python "$folder/venv" --resolution lowest-direct --group test --group build --editable ".[$extras]"
"$folder/venv/bin/python" -m pytest -q -n 2 --dist loadfile -m "not slow and not spark" tests/unit
