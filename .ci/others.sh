#!/bin/sh
# others.sh DIR [PURE]: run the core's tests on each further Python at hand, in an environment of its own under DIR; on
# both editions, or with PURE=0 on the native one alone, with PURE=1 on Python's.
#
# At hand are python3.12 to python3.14 and the free-threaded python3.13t and python3.14t on the PATH, and what pyenv has of
# these; one of each version. The core is timer, purgatory and purgatory.aio: what runs on any of them. It is tested without
# being installed: the native edition, which is compiled in place, and the Python edition. Each round says what it runs. Where
# there is a C compiler and the native edition can't be compiled, that is an error; where there is none, its round is left out.
#
# A free-threaded one runs without the global lock whatever its modules say (PYTHON_GIL=0), and does without uvloop, of which
# there is no wheel for 3.13t.
set -eu
cd "$(dirname "$0")/.."
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
tests=$(sed -n 's/^CORE_TESTS := //p' Makefile)
seen=
for candidate in python3.12 python3.13 python3.14 python3.13t python3.14t \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
    version=$("$candidate" -c 'import ensurepip, venv, sysconfig, sys
print("%d.%d%s" % (*sys.version_info[:2], "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))))' 2>/dev/null) || continue
    case " $seen " in *" $version "*) continue ;; esac
    seen="$seen $version"
    case $version in
    *t) gil=0 group=anywhere ;;
    *) gil=1 group=core ;;
    esac
    venv=$folder/$version
    [ -x "$venv/bin/python" ] || "$candidate" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
    "$venv/bin/python" -m pip install --quiet --prefer-binary --group "$group" attrs structlog prometheus-client
    compiled=yes
    "$venv/bin/python" hatch_build.py || compiled=no
    for pure in ${2:-0 1}; do
        if [ "$pure" = 0 ] && [ "$compiled" = no ]; then
            if command -v "${CC:-cc}" >/dev/null; then
                echo "error: python $version: the native edition was not compiled, and there is a C compiler" >&2
                exit 1
            fi
            echo "python $version: no C compiler, so no native edition to test"
            continue
        fi
        PYTHONPATH=. PYTHON_GIL=$gil PURGATORY_PURE=$pure "$venv/bin/python" -c 'import platform, sys, purgatory, timer
gil = getattr(sys, "_is_gil_enabled", lambda: True)()
print("python %s, %s global lock, purgatory.COMPILED %s, timer.COMPILED %s:" % (
    platform.python_version(), "with the" if gil else "no", purgatory.COMPILED, timer.COMPILED))
sys.exit(sys.argv[1] == "0" and not (purgatory.COMPILED and timer.COMPILED))' "$pure"
        # shellcheck disable=SC2086  # a list of folders
        PYTHONPATH=. PYTHON_GIL=$gil PURGATORY_PURE=$pure "$venv/bin/python" -m pytest -q -p no:cacheprovider $tests
    done
done
[ -n "$seen" ] || echo "no further Python is at hand"
