"""Fixtures of the job side's tests: the native plug-in, keys, a store."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stitchcore.artifact import sign
from stitchcore.inject import build, plugin
from tests.inject import handmade, jobs

Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """(driver's name, native sources, flags...) -> a program of the plug-in's parts alone."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: apt-get install g++")

    def make(name: str, sources: tuple[str, ...], *flags: str) -> Path:
        target = tmp_path_factory.mktemp(name) / name
        given = [str(Path(__file__).parent / f"{name}.cc")]
        given += [str(build.NATIVE / source) for source in sources]
        includes = f"-I{build.NATIVE}"
        subprocess.run(
            [compiler, "-std=c++17", "-O1", *flags, includes, *given, "-o", str(target)], check=True
        )
        return target

    return make


@pytest.fixture(scope="module")
def library(native: Path) -> plugin.Plugin:
    """The plug-in, loaded into this process."""
    pytest.importorskip("tensorflow", reason="the plug-in needs TensorFlow's library")
    return plugin.Plugin(plugin.open_native(str(native)))


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


Submit = Callable[..., None]
Answer = Callable[..., None]


@pytest.fixture(scope="session")
def submitted(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Submit:
    """(version, script, store, arguments of the script...): leaves in `store` what a short run of
    the script hands in. The run is made once."""
    made: dict[tuple[object, ...], Path] = {}

    def submit(version: str, script: str, store: Path, *arguments: object) -> None:
        case = (version, script, *arguments)
        if case not in made:
            made[case] = tmp_path_factory.mktemp("submitted")
            done = jobs.run(
                jobs.python_of(version), script, *(arguments or (1,)), store=made[case],
                mode="observe", session="first",
            )  # fmt: skip
            assert done.code == 0, done.lines
        shutil.copytree(made[case], store, dirs_exist_ok=True)

    return submit


@pytest.fixture
def answered(submitted: Submit, store: Path, key_file: Path) -> Answer:
    """(version, script, behaviour): what the script hands in is in the store, and an answer by
    hand (handmade.py) that stitches something."""

    def answer(version: str, script: str, behaviour: str, *arguments: object) -> None:
        submitted(version, script, store, *arguments)
        assert handmade.answer(store, key_file, behaviour) > 0

    return answer
