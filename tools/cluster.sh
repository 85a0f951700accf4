#!/bin/sh
# What a cluster on this machine takes, checked before anything is built: `cluster.sh LEVEL...` (api,
# controllers, node). All that is missing is named at once; as root on Debian it is installed, but for
# Go, which Debian has too old, for room on the disk, and for being root, which a node takes.
set -eu
missing="" other="" node=""
for level in "$@"; do
    [ "$level" = node ] && node=yes
done
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
if [ -n "$node" ]; then
    need runc runc
    need iptables iptables
    need ip iproute2
    need sysctl procps
    need unshare util-linux
    need nsenter util-linux
    need cc "gcc libc6-dev"
    [ -e /usr/lib/cni/bridge ] || [ -e /opt/cni/bin/bridge ] || missing="$missing containernetworking-plugins"
    [ "$(id -u)" = 0 ] || other="$other; a node needs root: sudo make"
fi
command -v go >/dev/null 2>&1 || other="$other; Go 1.26 or newer: https://go.dev/dl"
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}
while [ ! -d "$cache" ]; do cache=$(dirname "$cache"); done
for folder in "$cache" /var/tmp; do
    free=$(df -Pk "$folder" | awk 'NR == 2 {print int($4 / 1048576)}')
    [ "$free" -ge 5 ] || other="$other; 5 GiB in $folder, which has $free"
done
if [ -n "$missing" ] && { [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; }; then
    other="; on Debian: apt-get install --no-install-recommends$missing$other"
fi
if [ -n "$other" ]; then
    echo "a cluster needs${other#;}. Then call make again." >&2
    exit 1
fi
[ -z "$missing" ] && exit 0
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
