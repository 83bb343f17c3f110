#!/bin/sh
# install.sh VENV PYTHON [ARGUMENT...]: install into the environment VENV, which is made if it is not there.
#
# The arguments are those of `pip install`. Without one, VENV is made and no more. uv installs, because it needs a third of
# pip's time. If it is not on the PATH, pip installs it into VENV. With INSTALLER=pip in the environment, pip does all.
set -eu
folder=$(dirname "$0")
venv=$1
python=$2
shift 2

if [ "${INSTALLER:-uv}" = uv ] && uv --version >/dev/null 2>&1; then
    "$folder/venv.sh" "$venv" "$python" --without-pip
    [ $# = 0 ] || uv pip install --quiet --python "$venv/bin/python" "$@"
    exit
fi
"$folder/venv.sh" "$venv" "$python"
[ $# != 0 ] || exit 0
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
if [ "${INSTALLER:-uv}" = uv ]; then
    "$venv/bin/python" -m uv --version >/dev/null 2>&1 || "$venv/bin/python" -m pip install --quiet uv
    exec "$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" "$@"
fi
"$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1" # the first that reads dependency groups
exec "$venv/bin/python" -m pip install --quiet --prefer-binary "$@"
