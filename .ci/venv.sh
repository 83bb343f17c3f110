#!/bin/sh
# venv.sh VENV [PYTHON [OPTION]]: make the virtual environment VENV, unless it is there and serves.
#
# OPTION is one of `python -m venv`.
#
# Tries PYTHON when it is given, else the usual names on the PATH. A candidate counts only if it runs (version managers leave
# shims that don't), is new enough, and brings ensurepip (Debian packs that apart, as python3-venv).
set -eu
venv=$1
wanted=${2:-}
option=${3:-}

serves() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -x "$venv/bin/python" ] && serves "$venv/bin/python"; then
    exit 0
fi
for candidate in ${wanted:-python3 python python3.13 python3.12 python3.11 python3.14}; do
    if serves "$candidate"; then
        exec "$candidate" -m venv --clear ${option:+"$option"} "$venv"
    fi
done
echo "error: no Python >= 3.11 with venv ${wanted:+at }${wanted:-on the PATH}: install one (Debian: apt-get install python3-venv), or say make PYTHON=/path/to/python" >&2
exit 1
