#!/bin/sh
# tests/deps.sh PACKAGE… - installs the missing Debian packages and logs which these are.
set -eu
command -v dpkg-query >/dev/null 2>&1 || {
    echo "deps: this is no Debian system; install by hand what these packages hold: $*" >&2
    exit 0
}
missing=""
for package in "$@"; do
    case "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)" in
    *"install ok installed"*) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0
echo "deps: installing$missing" >&2
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "deps: neither root nor sudo: run as root: apt-get install$missing" >&2
        exit 1
    }
    as_root="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$as_root apt-get install -y -q --no-install-recommends $missing >/dev/null 2>&1 || {
    $as_root apt-get update -q >/dev/null
    $as_root apt-get install -y -q --no-install-recommends $missing >/dev/null
}
