#!/bin/sh
# others.sh DIR: run the core's tests on each further Python at hand, in an environment of its own under DIR.
#
# At hand are python3.12 to python3.14 and the free-threaded python3.13t and python3.14t on the PATH, and what pyenv has of
# these; one of each version. The core is timer, purgatory and purgatory.aio: what runs on any of them. It is tested as
# Python, without being installed.
set -eu
cd "$(dirname "$0")/.."
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
seen=
for candidate in python3.12 python3.13 python3.14 python3.13t python3.14t \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
    version=$("$candidate" -c 'import ensurepip, venv, sysconfig, sys
print("%d.%d%s" % (*sys.version_info[:2], "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))))' 2>/dev/null) || continue
    case " $seen " in *" $version "*) continue ;; esac
    seen="$seen $version"
    venv=$folder/$version
    [ -x "$venv/bin/python" ] || "$candidate" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
    "$venv/bin/python" -m pip install --quiet --group core attrs structlog prometheus-client
    echo "python $version:"
    PYTHONPATH=. PYTHON_GIL=$(case $version in *t) echo 0 ;; *) echo 1 ;; esac) \
        "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/unit/timer tests/unit/purgatory tests/unit/aio tests/unit/faults \
        tests/property
done
[ -n "$seen" ] || echo "no further Python is at hand"
