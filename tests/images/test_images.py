"""What is in the images: made from the Dockerfiles as they are, and read layer by layer."""

from __future__ import annotations

import gzip
import stat
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from images import archive, builder, catalogue, sbom
from images.catalogue import ROOT, TENSORFLOWS, Image
from stitchcore.inject import build as native
from tests.cluster.own_images import DEBIAN, REDIS, built

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
MACHINES = {"amd64": 62, "arm64": 183}
"""Of ELF headers."""
MEGABYTE = 10**6
RUNTIME, OPERATOR, WORKER = catalogue.runtime(), catalogue.operator(), catalogue.worker()
IMAGES = {"runtime": RUNTIME, "operator": OPERATOR, "worker": WORKER}
MOST = {"runtime": 2, "operator": 200, "worker": 700}
"""Megabytes that a node pulls, with the stand-in for the public base."""
OLDEST = {b"GLIBC_": (2, 31), b"GLIBCXX_": (3, 4, 28)}
"""What Ubuntu 20.04 and Debian 11 have."""


@pytest.fixture(params=list(IMAGES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(name: str) -> Path:
    return built(IMAGES[name]).archive


def packages(made: Path) -> set[str]:
    """Names of Python's packages in an image."""
    paths = archive.files(made)
    return {path.split("-packages/")[1].split("/")[0] for path in paths if "-packages/" in path}


def test_it_runs_as_nobody_and_says_what_it_starts(name: str, made: Path) -> None:
    config = archive.config(made)["config"]
    entry = {"runtime": ["/deliver"], "operator": ["python", "-m"]}
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == entry.get(name, ["python", "-m", "stitch_worker"])


def test_nothing_in_it_raises_rights(made: Path) -> None:
    raised = stat.S_ISUID | stat.S_ISGID
    found = archive.files(made)
    assert [path for path, entry in found.items() if entry.isfile() and entry.mode & raised] == []
    writable = [p for p, e in found.items() if e.isfile() and e.mode & stat.S_IWOTH]
    assert writable == []


def test_nothing_of_its_making_is_left(made: Path) -> None:
    """Neither how this machine reaches PyPI, nor what installed the packages."""
    found = archive.files(made)
    assert "/etc/pip.conf" not in found and "/build" not in found
    assert "pip" not in packages(made)
    assert not [path for path in found if path.endswith(".whl")]
    history = str(archive.config(made))
    assert "index-url" not in history and "proxy" not in history.lower()


CANARY = "user:stitch-canary-41c9@index"
SECRET_USED = """FROM docker.io/library/debian:bookworm-slim
RUN --mount=type=secret,id=pip,target=/etc/pip.conf grep -c canary /etc/pip.conf > /seen
"""


def test_how_this_machine_reaches_an_index_is_in_no_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that asks for it can read it, and that is all."""
    built(REDIS)
    (tmp_path / "Dockerfile").write_text(SECRET_USED)
    (tmp_path / ".dockerignore").touch()
    for module in (catalogue, builder):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(builder, "_pip_conf", lambda: f"canary = {CANARY}\n")
    made = builder.build(Image("localhost/test/secret:1", "Dockerfile", (), DEBIAN)).archive
    assert archive.read(made, "/seen") == b"1\n"
    assert archive.files(made).get("/etc/pip.conf", tarfile.TarInfo()).size == 0
    with tarfile.open(made) as content:
        for member in filter(tarfile.TarInfo.isfile, content):
            stream = content.extractfile(member)
            data = stream.read() if stream else b""
            plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
            assert CANARY.encode() not in plain
    made.unlink()


def test_it_is_small(name: str, made: Path) -> None:
    assert sum(archive.compressed_bytes(made)) < MOST[name] * MEGABYTE


def test_only_the_worker_has_a_compiler() -> None:
    compilers = {"gcc", "cc", "g++", "c++", "clang", "cc1", "ld", "as"}
    for image, expected in ((RUNTIME, False), (OPERATOR, False), (WORKER, True)):
        folders = (path.rpartition("/") for path in archive.files(built(image).archive))
        programs = {name for folder, _, name in folders if folder.endswith("bin")}
        assert bool(compilers & programs) is expected
        assert "g++" not in programs


def test_services_hold_no_tensorflow_and_workers_no_service() -> None:
    operator, worker = packages(built(OPERATOR).archive), packages(built(WORKER).archive)
    assert {"stitchcore", "stitch_operator", "stitch_worker", "kubernetes", "s3fs"} <= operator
    assert {"stitchcore", "stitch_worker", "tensorflow", "celery", "s3fs"} <= worker
    assert "tensorflow" not in operator and "stitch_operator" not in worker


@pytest.mark.parametrize("image", [OPERATOR, WORKER], ids=["operator", "worker"])
def test_its_bill_names_every_package_with_the_wheel_that_is_locked(image: Image) -> None:
    made = built(image).archive
    parts = sbom.of_image(made)["components"]
    python = [one for one in parts if one["purl"].startswith("pkg:pypi/")]
    installed = [one for one in packages(made) if one.endswith(".dist-info")]
    assert len(python) == len(installed) > 20
    assert [one["name"] for one in python if "hashes" not in one] == []
    assert {"libc6", "python3.11-minimal"} <= {one["name"] for one in parts}


def test_the_runtime_is_what_a_job_needs_and_no_more() -> None:
    found = archive.files(built(RUNTIME).archive)
    files = {path for path, entry in found.items() if entry.isfile()}
    python = {f"/runtime/inject/{p.name}" for p in (ROOT / "stitchcore/inject").glob("*.py")}
    shims = {native.shim_name((2, minor)) for minor in range(15, 22)}
    libraries = {f"/runtime/inject/lib/x86_64/{one}" for one in ("stitch_plugin.so", *shims)}
    expected = {"/deliver", "/LICENSE", "/runtime/inject/bootstrap/sitecustomize.py"}
    assert files == expected | libraries | python - {"/runtime/inject/build.py"}
    assert len(TENSORFLOWS) == len(shims)


def test_its_native_files_load_on_old_systems() -> None:
    """What Debian 12 makes asks for glibc 2.36, and jobs run on Ubuntu 22.04 (2.35)."""
    made = built(RUNTIME).archive
    for path in archive.files(made):
        if path.endswith(".so"):
            data = archive.read(made, path)
            for prefix, newest in OLDEST.items():
                asked = {
                    word[len(prefix) :] for word in data.split(b"\0") if word.startswith(prefix)
                }
                versions = {tuple(map(int, one.split(b"."))) for one in asked}
                assert max(versions, default=newest) <= newest, path


@pytest.mark.parametrize("architecture", list(MACHINES))
def test_deliver_is_a_static_program_of_its_architecture(architecture: str) -> None:
    made = built(catalogue.runtime(architecture)).archive
    assert archive.config(made)["architecture"] == architecture
    program = archive.read(made, "/deliver")
    assert struct.unpack_from("<H", program, 18)[0] == MACHINES[architecture]
    kinds = {struct.unpack_from("<I", program, 64 + 56 * n)[0] for n in range(program[56])}
    assert 3 not in kinds  # PT_INTERP
    assert len(program) < 1 << 20


def test_other_architectures_get_a_runtime_that_says_why_it_does_nothing() -> None:
    """A pod that lands there is not held back by an image that its node cannot use."""
    found = archive.files(built(catalogue.runtime("arm64")).archive)
    assert "/runtime/inject/plugin.py" in found
    assert not [path for path in found if path.endswith(".so")]


@pytest.mark.slow
@pytest.mark.parametrize("image", [RUNTIME, OPERATOR], ids=["runtime", "operator"])
def test_it_is_made_again_bit_for_bit(image: Image, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    builder.rebuild(image, again)
    assert archive.digest(again) == built(image).digest


def test_a_second_build_is_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(RUNTIME)
    monkeypatch.setattr(builder, "_buildah", _fails)
    assert builder.build(RUNTIME) == first


def test_a_changed_source_is_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    for name in ("Dockerfile", ".dockerignore", "source/one", "source/lib/built.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("1")
    image = Image("x", "Dockerfile", ("source",), catalogue.PYTHON)
    seen = [image.content()]
    (tmp_path / "source/lib/built.so").write_text("2")
    assert image.content() == seen[0]
    for name in ("source/one", "source/two", "Dockerfile", ".dockerignore"):
        (tmp_path / name).write_text("2")
        seen.append(image.content())
    (tmp_path / "source/two").rename(tmp_path / "source/three")
    seen += [image.content(), replace(image, arguments=(("LOCK", "1"),)).content()]
    assert len(set(seen)) == len(seen)


def _fails(*arguments: str) -> None:
    raise AssertionError(f"buildah {arguments}")
