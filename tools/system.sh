#!/bin/sh
# Installs what a fresh Debian machine lacks: a C and C++ compiler and libsodium's static library,
# the Redis server that `stitch serve` starts, and for the tests the Prometheus that reads its metrics
# and the RabbitMQ that workers are tried with, the PostgreSQL that ledgers are, the Chromium that reads the report page, and what builds
# images. No daemon is started or enabled. `system.sh PYTHON demo` leaves all that tests need out.
set -eu
missing=""
command -v gcc >/dev/null 2>&1 || missing="$missing gcc"
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
[ -f /usr/include/sodium.h ] || missing="$missing libsodium-dev"
if [ "${2:-}" != demo ]; then
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
command -v prometheus >/dev/null 2>&1 || missing="$missing prometheus"
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
command -v buildah >/dev/null 2>&1 || missing="$missing buildah"
command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v chromedriver >/dev/null 2>&1 || missing="$missing chromium-driver"
fi
"$(dirname "$0")/python.sh" "$1" >/dev/null 2>&1 || missing="$missing python3 python3-venv"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "stitchcore needs:$missing. Install them (on Debian: apt-get install$missing) and call make again." >&2
    exit 1
fi
# Debian's packages start their daemons; this file is how it lets one forbid that (policy-rc.d).
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
