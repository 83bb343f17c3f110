#!/bin/sh
# subject.sh FILE: reject a commit message whose first line is longer than 72 characters. A hook, with git's file.
# subject.sh RANGE: the same for each commit of a range, such as main..HEAD.
set -eu
most=72
if [ -f "$1" ]; then
    subjects=$(grep -v '^#' "$1" | sed -n 1p)
else
    subjects=$(git log --no-merges --format=%s "$1")
fi
long=$(printf '%s\n' "$subjects" | awk -v most="$most" 'length($0) > most')
[ -z "$long" ] || {
    printf 'the subject of a commit must have at most %s characters; put the reason into the body:\n%s\n' "$most" "$long" >&2
    exit 1
}
