"""A PostgreSQL of Debian's for tests: a server of their own, which may be killed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.ports import free_port
from tests.waiting import wait_for

WHERE = Path("/usr/lib/postgresql")
ACCOUNT = "postgres"
"""It refuses to run as root."""


@dataclass
class Postgres:
    """A server on a folder; databases are made in it as tests need them."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    made: int = 0
    settings: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.folder)}
        command = [program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        for name, value in {**options, **self.settings}.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **_account())
        wait_for(self._answers, lambda: (self.folder / "log").read_text()[-2000:])

    def kill(self) -> None:
        """As a machine that loses its power: every process of it at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # or it would tell the others
        for one in (*_children(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self.process.wait()

    def fresh(self) -> str:
        """The URL of a database that is empty."""
        self.made += 1
        name = f"ledger_{self.made}"
        with self.asked() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgresql://{ACCOUNT}@127.0.0.1:{self.port}/{name}"

    @contextlib.contextmanager
    def asked(self, name: str = "postgres") -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url(name), autocommit=True, connect_timeout=5) as connection:
            yield connection

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), self.asked():
            return True
        return False


def program(name: str) -> str:
    """Of the newest version that is installed."""
    found = sorted(WHERE.glob(f"*/bin/{name}"), key=lambda one: int(one.parts[-3]))
    if not found:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    return str(found[-1])


@contextlib.contextmanager
def server() -> Iterator[Postgres]:
    initdb = program("initdb")
    folder = Path(tempfile.mkdtemp(prefix="stitch-postgres-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(folder, ACCOUNT, ACCOUNT)
    data = str(folder / "data")
    command = [initdb, "-D", data, "-U", ACCOUNT, "-A", "trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **_account())
    made = Postgres(folder, free_port())
    try:
        made.start()
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _account() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    return {"user": ACCOUNT, "group": pwd.getpwnam(ACCOUNT).pw_gid, "extra_groups": []}


def _children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(one) for one in found.split()]
