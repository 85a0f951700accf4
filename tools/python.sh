#!/bin/sh
# Prints the Python 3.11 to use: the first argument, or python3 where that is 3.11.
set -eu
for candidate in "$1" python3; do
    if command -v "$candidate" >/dev/null 2>&1 &&
        "$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
    then
        echo "$candidate"
        exit 0
    fi
done
echo "stitchcore needs Python 3.11 with venv: apt-get install python3.11 python3.11-venv, or make PYTHON=/path/to/python3.11" >&2
exit 1
