#!/bin/sh
# sanitize.sh PYTHON DIR [ARGUMENT ...]: search for errors of C in the native implementation. Arguments are pytest's.
#
# First gcc's static analyser and, where it is at hand, cppcheck: whatever they find is an error. Then the core's unit
# and property tests, on extensions that are built with the address and undefined-behaviour sanitizers. They are built in
# a copy of the tree under DIR, since nobody can import them without the sanitizers' libraries. PYTHONMALLOC: Python's
# own allocator would hide what is used after it was freed. Leaks are looked for by tests, as an interpreter frees
# little at its end.
set -eu
cd "$(dirname "$0")/.."
case $1 in /*) python=$1 ;; *) python=$PWD/$1 ;; esac
folder=$2
shift 2
rm -rf "$folder"
mkdir -p "$folder"
git ls-files -z --cached --others --exclude-standard |
    tar -c --null --files-from=- | tar -x -C "$folder"
cd "$folder"
PYTHONPATH=$PWD
export PYTHONPATH
unset CC LDSHARED CFLAGS
echo "sanitize: gcc -fanalyzer"
CC=gcc CFLAGS=-fanalyzer "$python" hatch_build.py
if command -v cppcheck >/dev/null; then
    echo "sanitize: cppcheck"
    # shellcheck disable=SC2046  # a list of files
    cppcheck --quiet --error-exitcode=1 --library=python --std=c11 --enable=warning,portability --inline-suppr -I. \
        $("$python" -c "import hatch_build; print(*hatch_build.SOURCES.values())")
fi
CC=gcc "$python" hatch_build.py --sanitize
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
    PYTHONMALLOC=malloc "$python" -m pytest -q -p no:cacheprovider -o timeout=1800 \
    tests/unit/timer tests/unit/purgatory tests/unit/journal/test_ledger.py tests/property "$@"
