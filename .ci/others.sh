#!/bin/sh
# others.sh DIR [PURE]: run the core's tests on each further interpreter at hand, both implementations.
#
# PURE=0 runs the native implementation alone, PURE=1 the pure one. .ci/pythons.sh finds the interpreters: CPython 3.12 to
# 3.15, free-threaded builds, and PyPy, which has no native implementation. Each one gets an environment under DIR. The
# core is timer, purgatory and purgatory.aio. It is tested without being installed, and is compiled in place. If there is
# a C compiler and the native implementation cannot be compiled, that is an error. If there is none, only the pure one is
# tested.
#
# A free-threaded interpreter runs without the global lock whatever its modules declare (PYTHON_GIL=0). uvloop has no
# wheels for free-threaded 3.13, for 3.15 and for PyPy; its tests are skipped there.
set -eu
cd "$(dirname "$0")/.."
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
tests=$(sed -n 's/^CORE_TESTS := //p' Makefile)
list=$(.ci/pythons.sh)
[ -n "$list" ] || echo "no further Python is at hand"
echo "$list" | while read -r version candidate; do
    gil=1 group=core implementations=${2:-0 1}
    case $version in
    3.11 | "") continue ;; # make test runs it
    pypy*) implementations=1 group=anywhere ;;
    *t) gil=0 group=anywhere ;;
    3.15) group=anywhere ;;
    esac
    venv=$folder/$version
    .ci/install.sh "$venv" "$candidate" --group "$group" attrs structlog prometheus-client
    compiled=yes
    case $version in pypy*) ;; *) "$venv/bin/python" hatch_build.py || compiled=no ;; esac
    for pure in $implementations; do
        if [ "$pure" = 0 ] && [ "$compiled" = no ]; then
            if command -v "${CC:-cc}" >/dev/null; then
                echo "error: python $version: the native implementation was not compiled, and there is a C compiler" >&2
                exit 1
            fi
            echo "python $version: no C compiler, so no native implementation to test"
            continue
        fi
        PYTHONPATH=. PYTHON_GIL=$gil PURGATORY_PURE=$pure "$venv/bin/python" -c 'import platform, sys, purgatory, timer
gil = getattr(sys, "_is_gil_enabled", lambda: True)()
print("%s %s, %s global lock, purgatory.COMPILED %s, timer.COMPILED %s:" % (platform.python_implementation(),
    platform.python_version(), "with the" if gil else "no", purgatory.COMPILED, timer.COMPILED))
sys.exit(sys.argv[1] == "0" and not (purgatory.COMPILED and timer.COMPILED))' "$pure"
        # shellcheck disable=SC2086  # a list of folders
        PYTHONPATH=. PYTHON_GIL=$gil PURGATORY_PURE=$pure "$venv/bin/python" -m pytest -q -p no:cacheprovider \
            -n 2 --dist loadfile --durations=20 --durations-min=1 $tests </dev/null
    done
done
