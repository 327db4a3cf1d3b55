#!/usr/bin/env bash
# Runs a command on a "host" of this machine, as ssh would on another: emulated_host.sh NAME COMMAND...
# The host is a namespace with a name of its own. Needs root, or user namespaces.
set -eu
while [[ $1 == -* ]]; do shift; done
unshare=(unshare --uts)
[ "$(id -u)" = 0 ] || unshare=(unshare --map-root-user --uts)
# shellcheck disable=SC2016
exec "${unshare[@]}" sh -c 'hostname "$0"; eval "$*"' "$@"
