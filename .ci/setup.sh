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
        zookeeper) [ -e /usr/share/java/zookeeper.jar ] ;; # a library that the tests start themselves, no command
        postgresql) [ -n "$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null)" ] || command -v postgres >/dev/null 2>&1 ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

package() {
    case $1 in
        java) echo openjdk-17-jre-headless ;;
        chromedriver) echo chromium-driver ;;
        node) echo nodejs ;;
        pyright) command -v npm >/dev/null 2>&1 || echo npm ;; # which installs it, see below
        *) echo "$1" ;;
    esac
}

missing=
modules= # of npm; each release of this one may find more than the last, so it is a certain one
for program in "$@"; do
    present "$program" && continue
    name=$(package "$program")
    missing="$missing${name:+ $name}"
    [ "$program" != pyright ] || modules=" pyright@1.1.414"
done
[ -n "$missing$modules" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing$modules ..."
    # RUNLEVEL=1 keeps the packages' own services from being started; the tests start what they use, on ports of their own.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    log=$(mktemp)
    # shellcheck disable=SC2086  # a list of words
    if {
        { [ -z "$missing" ] || { apt-get update && apt-get install --yes --no-install-recommends $missing; }; } &&
            { [ -z "$modules" ] || npm install --global --silent $modules; }
    } >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
fi
[ -z "$missing" ] ||
    echo "please install:$missing (Debian: apt-get install$missing); the tests that drive them can't run without" >&2
[ -z "$modules" ] || echo "please install:$modules (npm install --global$modules); the tests that drive it can't run without" >&2
