"""Fixtures of the job side's tests: the native plug-in, keys, a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcore.artifact import sign
from stitchcore.inject import build


@pytest.fixture(scope="session")
def native() -> Path:
    """The folder of the built plug-in; built now when it is older than its sources."""
    folder = build.library_folder()
    plugin, here = folder / "stitch_plugin.so", build.tensorflow_of_this_python()
    shim = folder / build.shim_name(build.version_of(here)) if here is not None else plugin
    if not (build.is_fresh(plugin) and build.is_fresh(shim)):
        try:
            build.build([here] if here is not None else [])
        except build.BuildError as error:
            pytest.skip(f"native plug-in cannot be built: {error}")
    return folder


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    sign.load_or_create_key(path)
    return path


@pytest.fixture
def public_key(key_file: Path) -> str:
    return sign.public_hex(sign.load_or_create_key(key_file))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path
