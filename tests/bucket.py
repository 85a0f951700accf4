"""An S3 in this process: moto's server speaks its protocol, s3fs and botocore are the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

NAME = "stitch"
URL = f"s3://{NAME}/store"


@contextmanager
def served() -> Iterator[tuple[ThreadedMotoServer, dict[str, str]]]:
    """An empty one with one bucket, and the environment in which programs find it: this process is
    in it meanwhile."""
    import boto3  # half a second, with what follows
    import s3fs
    from moto.server import ThreadedMotoServer

    made = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    httpx.post(f"{endpoint}/moto-api/reset", trust_env=False).raise_for_status()
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=NAME)
        s3fs.S3FileSystem.clear_instance_cache()  # fsspec keeps them, with their connections
        yield made, environment
    made.stop()
