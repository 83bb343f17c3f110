#!/bin/sh
# pythons.sh: print the supported interpreters at hand, one per line: "VERSION PATH", each version once.
#
# Looks for python3.11 to python3.15, the free-threaded builds and PyPy on the PATH, then for the versions of pyenv.
set -eu
seen=
for candidate in python3.11 python3.12 python3.13 python3.14 python3.15 python3.13t python3.14t python3.15t pypy3 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-9]*/bin/python; do
    version=$("$candidate" -c 'import ensurepip, venv, platform, sysconfig, sys
assert sys.version_info >= (3, 11)
print("%s%d.%d%s" % ("pypy" * (platform.python_implementation() == "PyPy"), *sys.version_info[:2],
                     "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))))' 2>/dev/null) || continue
    case " $seen " in *" $version "*) continue ;; esac
    seen="$seen $version"
    echo "$version $(command -v "$candidate")"
done
