#!/bin/sh
# setup.sh PROGRAM...: see that the programs some tests drive are there; install them where that is ours to do.
#
# As root on Debian or Ubuntu what is missing is installed. Anyone else is told, in one line, what to install, and the
# tests that need it then say so themselves: this script never fails a run.
set -eu

present() {
    case $1 in
        java) # Spark needs 17 or newer.
            major=$(java -version 2>&1 | sed -n 's/^[^"]* version "\([0-9]*\).*/\1/p') || return 1
            [ "${major:-0}" -ge 17 ] ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

package() {
    case $1 in
        java) echo openjdk-17-jre-headless ;;
        chromedriver) echo chromium-driver ;;
        *) echo "$1" ;;
    esac
}

missing=
for program in "$@"; do
    present "$program" || missing="$missing $(package "$program")"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing ..."
    # RUNLEVEL=1 keeps the packages' own services from being started; the tests start what they use, on ports of their own.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    log=$(mktemp)
    # shellcheck disable=SC2086  # a list of words
    if { apt-get update && apt-get install --yes --no-install-recommends $missing; } >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
fi
echo "please install:$missing (Debian: apt-get install$missing); the tests that drive them can't run without" >&2
