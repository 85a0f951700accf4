"""A store's server in this process, with tokens that say their role; all else is real."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from stitch_operator.gateway import tls
from stitch_operator.gateway.identity import Cached
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.store.access import ROLES
from stitch_operator.store.app import FILE_BYTES, Metrics, Server, application
from stitch_operator.store.files import Files
from stitchcore.artifact.store import Store, open_store
from stitchcore.service import startup


class Named:
    """A token is the name of its role."""

    def identify(self, token: str) -> str:
        if token not in ROLES:
            raise Rejected(Problem.UNAUTHORIZED, "the API server does not accept the token")
        return token


@dataclass(frozen=True)
class Served:
    """`folder` holds ca.pem, a token file for each role, and the files served, in `store`."""

    folder: Path
    url: str
    server: uvicorn.Server
    thread: threading.Thread
    metrics: Metrics

    def end(self) -> None:
        self.server.should_exit = self.server.force_exit = True  # clients keep connections
        self.thread.join()

    def access(self, role: str) -> dict[str, str]:
        token = self.folder / f"{role}.token"
        token.write_text(role + "\n")
        return {"ca": str(self.folder / "ca.pem"), "token_file": str(token)}

    def store(self, role: str) -> Store:
        """As that program opens it."""
        return open_store(self.url, self.access(role))

    def environment(self, role: str) -> dict[str, str]:
        given = self.access(role)
        return {"STITCH_STORE_CA": given["ca"], "STITCH_STORE_TOKEN_FILE": given["token_file"]}


@contextmanager
def served(
    folder: Path, root: Path | None = None, file_bytes: int = FILE_BYTES
) -> Iterator[Served]:
    """A server of `root` (a new folder `store` in `folder`), until the end of the block."""
    kept = root or folder / "store"
    kept.mkdir(exist_ok=True)
    _, certificate, key = tls.make(folder, ["localhost"])
    files = Files(kept)
    metrics = Metrics(files.free)
    app = application(Server(files, Cached(Named()), metrics, file_bytes))
    listening = startup.listening("127.0.0.1", 0, "--port")
    settings = uvicorn.Config(
        app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1,
        ssl_context_factory=lambda _config, _default: tls.context(certificate, key),
    )  # fmt: skip
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"stitch://localhost:{listening.getsockname()[1]}"
    made = Served(folder, url, server, thread, metrics)
    yield made
    made.end()
