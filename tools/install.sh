#!/bin/sh
# install.sh PYTHON ARGUMENTS: what `PYTHON -m pip install ARGUMENTS` does, by uv in a quarter of the
# time: it unpacks wheels side by side and compiles no bytecode ahead. uv reads nothing of pip's
# configuration, so it is told of pip's indexes and certificates. Where uv cannot be had, or cannot
# install, pip does, and a line says so.
set -eu
python=$1
shift
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
configured() { pip config get "global.$1" 2>/dev/null || true; }
index=${PIP_INDEX_URL:-$(configured index-url)}
extra=${PIP_EXTRA_INDEX_URL:-$(configured extra-index-url)}
links=${PIP_FIND_LINKS:-$(configured find-links)}
certificates=${PIP_CERT:-$(configured cert)}
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
[ -z "$extra" ] || export UV_INDEX="${UV_INDEX:-$extra}"
[ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$links}"
[ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificates}"
if pip install --quiet 'uv>=0.9,<1' && "$python" -m uv pip install --quiet --python "$python" "$@"; then
    exit 0
fi
echo "install.sh: uv could not install these packages (it says above why): pip does, more slowly" >&2
pip install --quiet "$@"
