"""Bills of materials say what is in a file, and a release is what was signed or nothing."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from images import release, sbom
from images.__main__ import main
from tests.helm import charts

SITE = "opt/stitch/lib/python3.11/site-packages"
CELERY, WHEEL = next(
    (one[1], digest) for one, digest in sbom.locked().items() if one[0] == "celery"
)
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10

Package: gone
Status: deinstall ok config-files
Version: 1
"""
PYTHON = {
    f"{SITE}/celery-1.dist-info/METADATA": f"Name: Celery\nVersion: {CELERY}\n\nName: x\n",
    f"{SITE}/own_thing-2.dist-info/METADATA": "Name: own_thing\nVersion: 2.0\n",
    "var/lib/dpkg/status": STATUS,
}
REDIS = f"sha256:{'cd' * 32}"


def tarred(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def image(folder: Path, name: str, *layers: Mapping[str, str]) -> Path:
    """An OCI archive as buildah writes it."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return f"sha256:{digest}"

    made = [put(tarred({path: text.encode() for path, text in one.items()})) for one in layers]
    config = put(json.dumps({"architecture": "amd64"}).encode())
    document = {"config": {"digest": config}, "layers": [{"digest": one} for one in made]}
    index = {"manifests": [{"digest": put(json.dumps(document).encode())}]}
    path = folder / f"localhost_stitchcore_{name}-amd64-{'0' * 16}.tar"
    path.write_bytes(tarred({"index.json": json.dumps(index).encode(), **blobs}))
    return path


def wheel(folder: Path) -> Path:
    path = folder / "stitchcore-0.1.0-py3-none-manylinux_2_36_x86_64.whl"
    said = "Name: stitchcore\nVersion: 0.1.0\nRequires-Dist: click>=8.1\n"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("stitchcore/inject/lib/x86_64/stitch_plugin.so", b"\x7fELF")
        asked = "Requires-Dist: celery[redis]>=5.7; extra == 'worker'\n"
        made.writestr("stitchcore-0.1.0.dist-info/METADATA", said + asked)
    return path


@pytest.fixture
def made(tmp_path: Path) -> list[Path]:
    return [
        image(tmp_path, "operator_dev", PYTHON),
        image(tmp_path, "worker_dev-tf2.21", PYTHON),
        image(
            tmp_path,
            "runtime_dev",
            {"deliver": "old", "gone": "x"},
            {"deliver": "elf", "LICENSE": "text", ".wh.gone": ""},
        ),
        wheel(tmp_path),
    ]


def components(bill: sbom.Object) -> dict[str, sbom.Object]:
    return {one["bom-ref"]: one for one in bill["components"]}


def test_a_bill_is_cyclonedx_and_the_same_each_time(made: list[Path]) -> None:
    for path in made:
        of = sbom.of_wheel if path.suffix == ".whl" else sbom.of_image
        text = sbom.text(of(path))
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        assert sbom.text(of(path)) == text


def test_an_image_holds_what_its_package_lists_say(made: list[Path]) -> None:
    found = components(sbom.of_image(made[0]))
    assert set(found) == {
        f"pkg:pypi/celery@{CELERY}",
        "pkg:pypi/own-thing@2.0",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
    }
    hashes = [{"alg": "SHA-256", "content": WHEEL}]
    assert found[f"pkg:pypi/celery@{CELERY}"]["hashes"] == hashes, "of the wheel that is locked"


def test_without_packages_each_file_is_listed_as_a_container_finds_it(made: list[Path]) -> None:
    found = components(sbom.of_image(made[2]))
    assert set(found) == {"/deliver", "/LICENSE"}
    assert found["/deliver"]["hashes"][0]["content"] == hashlib.sha256(b"elf").hexdigest()


def test_a_wheel_says_its_native_files_and_what_it_asks_for(made: list[Path]) -> None:
    bill = sbom.of_wheel(made[3])
    scopes = {one["name"]: one.get("scope") for one in bill["components"]}
    native = "/stitchcore/inject/lib/x86_64/stitch_plugin.so"
    assert scopes == {"click": "required", "celery": "optional", native: None}
    said = bill["metadata"]["component"]["hashes"][0]["content"]
    assert said == hashlib.sha256(made[3].read_bytes()).hexdigest()


def test_a_release_pins_the_chart_to_what_was_signed(made: list[Path], tmp_path: Path) -> None:
    out, key = tmp_path / "out", tmp_path / "release.key"
    names = [str(path) for path in made]
    run = CliRunner().invoke
    arguments = ["release", *names, "--out", str(out), "--key", str(key), "--redis", REDIS]
    done = run(main, arguments, catch_exceptions=False)
    public = done.output.strip()
    entries = release.verify(out, public, made)
    text = (out / release.VALUES).read_text()
    pods = charts.pods(charts.objects(charts.rendered(text)))
    used = {one["image"].partition("@")[2] for _, _, spec in pods for one in spec["containers"]}
    assert used == {entries[0]["digest"], entries[1]["digest"], REDIS}
    checked = run(main, ["verify", str(out), *names, "--public-key", public])
    assert checked.exit_code == 0 and f"{entries[2]['digest']} runtime" in checked.output


def spoiled_release(out: Path, made: list[Path]) -> None:
    path = out / release.RELEASE
    path.write_bytes(path.read_bytes().replace(b"runtime", b"runtimf"))


def spoiled_bill(out: Path, made: list[Path]) -> None:
    path = next(out.glob("*operator*.cdx.json"))
    path.write_text(path.read_text().replace("libc6", "libc7"))


def spoiled_values(out: Path, made: list[Path]) -> None:
    values = yaml.safe_load((out / release.VALUES).read_text())
    values["images"]["operator"]["digest"] = REDIS
    (out / release.VALUES).write_text(yaml.safe_dump(values))


def another_image(out: Path, made: list[Path]) -> None:
    made[0] = image(out, "operator_dev", {**PYTHON, "opt/more": "x"})


@pytest.mark.parametrize(
    "spoil", [spoiled_release, spoiled_bill, spoiled_values, another_image, None]
)
def test_what_was_not_signed_is_refused(spoil: object, made: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    public = release.write(out, made, tmp_path / "release.key", REDIS)
    if callable(spoil):
        spoil(out, made)
    else:
        public = "00" * 32
    with pytest.raises(release.NotSigned):
        release.verify(out, public, made)
