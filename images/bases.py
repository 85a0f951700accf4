"""Stand-ins for public images where no registry is reached: Debian under their names.

A Dockerfile's FROM then finds the name in local storage and is built as it is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from images.catalogue import Base

MIRROR = "http://deb.debian.org/debian"
EPOCH = "0"
PYTHON_PACKAGES = ("python3", "python3-venv")
AS_PUBLIC = 'ln -s /usr/bin/python3 "$1/usr/local/bin/python"'
"""Public Python images have it there."""
LEFT_OUT = ("doc", "man", "info", "locale", "groff", "lintian")
"""Of /usr/share, as Debian's slim images."""


def key(base: Base) -> str:
    """Changes with the recipe; Debian's own updates are taken when it does."""
    told = repr((base, MIRROR, PYTHON_PACKAGES, AS_PUBLIC, LEFT_OUT))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def bootstrap(base: Base, archive: Path) -> None:
    """Debian's packages as a tar file. Raises CalledProcessError."""
    packages = (*base.packages, *(PYTHON_PACKAGES if base.python else ()))
    command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(packages)}"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{one}/*" for one in LEFT_OUT]
    if base.python:
        command += [f"--customize-hook={AS_PUBLIC}"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run(
        [*command, base.suite, str(archive), MIRROR],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
