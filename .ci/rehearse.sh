#!/bin/sh
# rehearse.sh PYTHON DIR: do what a release does, except the upload.
#
# Builds the source distribution, and from it the pure wheel, away from the tree. Checks their metadata. Then installs
# into a clean environment of each interpreter at hand: the wheel that it builds from the source distribution, with the
# native implementation where there is a C compiler, and the pure wheel. In each, `tests.installed` runs the README.
# The distributions are left in dist/.
set -eu
cd "$(dirname "$0")/.."
case $1 in /*) python=$1 ;; *) python=$PWD/$1 ;; esac
rm -rf "$2"
mkdir -p "$2" dist
folder=$(cd "$2" && pwd)

# A copy of the files under version control: what is lying about in the tree must not get into a release.
mkdir "$folder/tree" "$folder/away" "$folder/dist"
git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- | tar -x -C "$folder/tree"
echo "rehearse: building"
(cd "$folder/tree" && PURGATORY_PURE=1 "$python" -m build --outdir "$folder/dist" . >"$folder/build.log" 2>&1) || {
    tail -n 20 "$folder/build.log" >&2
    exit 1
}
"$python" -m twine check --strict "$folder"/dist/*

# The tests away from the sources, so that what they import is what was installed.
mkdir "$folder/away/tests"
cp tests/installed.py "$folder/away/tests"
cp README.md "$folder/away"

.ci/pythons.sh >"$folder/pythons"
while read -r version interpreter; do
    for kind in native pure; do
        case "$kind $version" in
        native\ pypy*) continue ;; # PyPy runs the pure implementation
        native\ *) command -v "${CC:-cc}" >/dev/null || continue ;;
        esac
        venv=$folder/$version-$kind
        "$interpreter" -m venv "$venv"
        if [ "$kind" = native ]; then
            PURGATORY_NATIVE=1 "$venv/bin/python" -m pip install --quiet "$folder"/dist/*.tar.gz
        else
            "$venv/bin/python" -m pip install --quiet "$folder"/dist/*.whl
        fi
        (cd "$folder/away" && "$venv/bin/python" -m tests.installed "$kind" README.md)
    done
done <"$folder/pythons"
cp "$folder"/dist/* dist/
ls dist
