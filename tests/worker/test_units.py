"""Kernels that outlive their graph: compiled once, kept whole, and changed by nobody."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitch_worker import children, units
from stitch_worker.children import Local
from stitch_worker.collect import collect
from stitch_worker.lease import FolderLeases
from stitch_worker.service import Service, process
from stitch_worker.units import Unit, Units, load_or_create_secret, scope_of
from stitch_worker.workshop import Workshop
from stitchcore.artifact.store import open_store
from stitchcore.device.host import host, host_device
from stitchcore.errors import Reason, Refused
from stitchcore.sandbox import isolate
from stitchcore.toolchain import c_compiler
from stitchcore.toolchain.c_compiler import command, compile_c, find_compiler, unit_key
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker.requests import TF, meta_of, python_path, submit

pytestmark = pytest.mark.skipif(
    bool(isolate.open_to_children()),
    reason="nothing keeps children apart here: sysctl kernel.unprivileged_userns_clone=1",
)
LIMITS = isolate.Limits(120, 8 * 2**30, 300)
HERE = Local(LIMITS, Path("/nowhere"))
SOURCE = '__attribute__((visibility("default"))) int one(void) { return 1; }\n'
SECRET = b"s" * 32


@pytest.fixture
def kept(tmp_path: Path) -> Units:
    return Units(open_store(str(tmp_path / "store")), SECRET, units.CLUSTER, host().target)


def made(source: str = SOURCE) -> Unit:
    device, compiler = host_device(), find_compiler()
    library = compile_c(source, device)
    return Unit(unit_key(source, compiler, device), compiler.version, "", library.data)


def file_of(kept: Units, key: str) -> Path:
    return Path(kept.store.path(units.FOLDER, kept.scope, key))


# ---- the store of units ------------------------------------------------------------------------
def test_what_was_kept_is_found(kept: Units) -> None:
    unit = made()
    assert kept.find(unit.key) is None
    kept.put(unit)
    assert kept.find(unit.key) == unit
    elsewhere = replace(kept, scope="ab" * 32)
    assert elsewhere.find(unit.key) is None, "a namespace finds its own"


def test_a_forged_unit_is_refused(kept: Units, tmp_path: Path) -> None:
    unit = made()
    kept.put(unit)
    file = file_of(kept, unit.key)
    good = file.read_bytes()

    def refused(data: bytes) -> bool:
        file.write_bytes(data)
        with pytest.raises(Refused) as caught:
            kept.find(unit.key)
        return caught.value.refusal.reason is Reason.BAD_ARTIFACT

    for place in (0, 40, len(good) // 2, len(good) - 1):
        assert refused(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    for length in (0, 10, 32, len(good) - 1):
        assert refused(good[:length])
    other = made(SOURCE.replace("1;", "2;"))
    kept.put(other)
    assert refused(file_of(kept, other.key).read_bytes()), "another unit's bytes under this name"
    replace(kept, secret=b"t" * 32).put(replace_library(unit, other.library))
    assert refused(file.read_bytes()), "written by who does not have the secret"
    stolen = replace(kept, scope="ab" * 32)
    stolen.put(unit)
    assert refused(file_of(stolen, unit.key).read_bytes()), "of another scope"
    file.write_bytes(good)
    assert kept.find(unit.key) == unit


def replace_library(unit: Unit, library: bytes) -> Unit:
    return Unit(unit.key, unit.compiler, unit.remarks, library)


def test_only_libraries_of_the_target_are_kept(kept: Units) -> None:
    unit = made()
    for bad in (
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" * 20,
        unit.library[:16] + b"\x02" + unit.library[17:],
    ):
        with pytest.raises(Refused):
            kept.put(replace_library(unit, bad))
    assert kept.find(unit.key) is None


WRITER = """
import sys
from stitch_worker.units import Unit, Units
from stitchcore.artifact.store import open_store
from stitchcore.device.host import host
root, library = sys.argv[1], open(sys.argv[2], "rb").read()
kept = Units(open_store(root), b"s" * 32, "cluster", host().target)
unit = Unit("ab" * 32, "gcc", "x" * 2_000_000, library)
print("ready", flush=True)
while True:
    kept.put(unit)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_point_leaves_no_torn_unit(kept: Units, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(made().library)
    key = "ab" * 32
    waits = (0.0, 0.003, 0.007, 0.013, 0.031)
    for wait in waits:
        root = str(kept.store.root)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, root, str(library)],
            env={"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        if wait == waits[-1]:
            wait_for(lambda: kept.find(key), "one that is whole")
        time.sleep(wait)
        writer.kill()
        writer.wait()
        writer.stdout.close()
        found = kept.find(key)
        assert found is None or found.library == library.read_bytes()
    folder = file_of(kept, key).parent
    later = time.time() + 2 * 3600
    collect(kept.store, later)
    assert {path.name for path in folder.iterdir()} <= {key}, "leftovers are collected"
    collect(kept.store, time.time() + 40 * 86400)
    assert kept.find(key) is None, "and what is old"


def test_workers_share_one_secret(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "secret"
    first = load_or_create_secret(path)
    assert load_or_create_secret(path) == first and len(first) == 32
    assert path.stat().st_mode & 0o077 == 0
    assert [one.name for one in path.parent.iterdir()] == ["secret"]
    path.write_text("abcd\n")
    with pytest.raises(ValueError, match="hexadecimal"):
        load_or_create_secret(path)


@pytest.mark.parametrize("scope", ["", "../x", "AB" * 32, 7, None, "clusters"])
def test_only_what_the_gateway_writes_is_a_scope(scope: object) -> None:
    assert scope_of({"scope": scope}) is None
    assert scope_of({"scope": "cluster"}) == "cluster"
    assert scope_of({"scope": "ab" * 32}) == "ab" * 32


# ---- the workshop ------------------------------------------------------------------------------
def asked(kept: Units, sources: list[bytes]) -> tuple[list[bytes | None], Workshop]:
    shop = Workshop(kept, HERE, 2)
    with shop.open() as channel:
        units.send(channel, len(sources).to_bytes(4, "big"))
        for source in sources:
            units.send(channel, source)
        answers = [units.receive(channel, 2**26) for _ in sources]
    return answers, shop


def test_a_unit_is_compiled_once(kept: Units) -> None:
    other = SOURCE.replace("1;", "2;")
    first, shop = asked(kept, [SOURCE.encode(), other.encode()])
    assert shop.counts == {"miss": 2} and shop.seconds > 0
    again, shop = asked(kept, [other.encode(), SOURCE.encode(), b"int x = ;"])
    assert again[:2] == first[::-1] and again[2] == b""
    assert shop.counts == {"hit": 2, "failed": 1}


def test_a_forged_unit_is_compiled_anew(kept: Units) -> None:
    key = made().key
    first, _ = asked(kept, [SOURCE.encode()])
    file = file_of(kept, key)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    again, shop = asked(kept, [SOURCE.encode()])
    assert shop.counts == {"refused": 1} and again == first
    _, shop = asked(kept, [SOURCE.encode()])
    assert shop.counts == {"hit": 1}


def test_it_compiles_as_the_toolchain_does(kept: Units) -> None:
    [answer], _ = asked(kept, [SOURCE.encode()])
    found = units.msgspec.msgpack.decode(answer or b"", type=Unit)
    assert found.library == compile_c(SOURCE, host_device()).data


def test_a_checkout_may_lie_where_children_see_nothing(
    kept: Units, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under /tmp, which looks empty to a compiler but for the headers."""
    monkeypatch.setattr(c_compiler, "INCLUDE", shutil.copytree(c_compiler.INCLUDE, tmp_path / "h"))
    [answer], shop = asked(kept, [f'#include "stitch_cpu.h"\n{SOURCE}'.encode()])
    assert answer and shop.counts == {"miss": 1}


@pytest.mark.parametrize(
    "junk", [b"\0\0\0\4\xff\xff\xff\xff", b"\xff" * 8, b"\0\0\0\4\0\0\0\1\xff"]
)
def test_a_stranger_at_the_other_end_only_ends_it(kept: Units, junk: bytes) -> None:
    shop = Workshop(kept, HERE, 1)
    with shop.open() as channel:
        channel.settimeout(20)
        channel.sendall(junk)
        if junk.endswith(b"\1\xff"):
            channel.close()
        else:
            assert channel.recv(1) == b""
    assert not shop.counts


SPY = """
import os, sys, time
seen = set()
end = time.monotonic() + 100
while time.monotonic() < end:
    for root in ("/tmp", os.environ["TMPDIR"]):
        for folder in os.listdir(root):
            if folder.startswith("stitch-child-"):
                try: seen.update(os.listdir(os.path.join(root, folder)))
                except OSError: pass
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open(f"/proc/{number}/comm").read() == "cc1\\n":
                seen.add("compiler seen")
                seen.update("reached " + n for n in os.listdir(f"/proc/{number}/cwd/"))
                for handle in os.listdir(f"/proc/{number}/fd"):
                    os.readlink(f"/proc/{number}/fd/{handle}"); seen.add("reached a descriptor")
        except OSError as error: seen.add(type(error).__name__)
    if os.path.exists("end"): break
print(sorted(seen))
"""


@pytest.mark.slow
def test_no_other_child_reaches_a_compiler_at_work(tmp_path: Path) -> None:
    """A graph's child looks for the sources and results of compilers, as hard as it can."""
    spy = isolate.command(
        [sys.executable, "-c", SPY], LIMITS, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    slow = "#include <math.h>\n" + "\n".join(
        f"void f{n}(float *x) {{ for (int i = 0; i < 999; i++) x[i] = x[i] * {n} + x[i + {n}]; }}"
        for n in range(400)
    )
    try:
        device, compiler = host_device(), find_compiler()
        unit, seconds = children.compile_alone(
            *(slow.encode(), "k" * 64, command(compiler, device), compiler.version, LIMITS),
            lambda: False,
        )
        assert unit is not None and seconds > 0.2
        (spy.folder / "end").touch()
        said, errors = spy.process.communicate(timeout=RUN_SECONDS)
        assert b"compiler seen" in said, (said, errors)
        assert b"kernels.c" not in said and b"kernels.so" not in said, said
        assert b"reached" not in said, said
    finally:
        spy.stop()


def test_a_compiler_that_hangs_or_is_not_wanted_any_more_is_ended() -> None:
    given = (SOURCE.encode(), "k" * 64, ["sleep", "infinity"], "sleep")
    short = replace(LIMITS, seconds=0.5)
    assert children.compile_alone(*given, short, lambda: False)[0] is None
    end = threading.Event()
    threading.Timer(0.3, end.set).start()
    assert children.compile_alone(*given, LIMITS, end.is_set)[0] is None


# ---- whole requests ----------------------------------------------------------------------------
def two_layers(rows: int, head: bool) -> Any:
    """A graph of one equal part, and another one that `head` chooses."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [512, 256], name="x" if head else "input")
        y = tf.compat.v1.placeholder(tf.float32, [512, 256], name="y" if head else "other")
        z = tf.nn.relu(x * y + 1.5, name="a" if head else "b") - y * 0.25
        w = tf.compat.v1.placeholder(tf.float32, [rows, 256], name="w")
        last = tf.tanh(w) * 2.0 + w if head else tf.exp(w * 0.5) - w * 3.0
        product = tf.linalg.matmul(z * z, last, transpose_b=True)
        tf.identity(product, name="result")
    return graph.as_graph_def(add_shapes=True)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    store = open_store(str(tmp_path / "store"))
    leases = FolderLeases(tmp_path / "leases", 30.0)
    hidden = (str(tmp_path / "store"),)
    here = Local(replace(LIMITS, hidden=hidden), tmp_path / "logs")
    return Service(
        *(store, leases, host().target, TF, here),
        jobs=2,
        secret=SECRET,
    )


def counts(service: Service, graph: Any, **meta: Any) -> dict[str, int]:
    key = submit(service.store, graph, meta_of(graph, **meta))
    outcome = process(service, key)
    assert outcome in ("signing", "refused")
    if outcome == "refused":
        answer = service.store.read_answer(key) or {}
        assert answer["reason"] in ("slower", "region_too_small"), answer
        return dict(answer["units"])
    service.store.delete("requests", key)
    [name] = service.store.list("unsigned")
    origin = units.msgspec.json.decode(service.store.read("unsigned", name, "request.json"))
    service.store.delete("unsigned", name)
    return dict(origin["units"])


@pytest.mark.slow
def test_equal_layers_of_different_graphs_are_compiled_once(service: Service) -> None:
    scope = "cd" * 32
    first = counts(service, two_layers(256, True), scope=scope)
    assert first["miss"] >= 2 and "hit" not in first
    second = counts(service, two_layers(256, False), scope=scope)
    assert second["hit"] >= 1 and second["miss"] >= 1
    kept = service.store.list(units.FOLDER, scope)
    assert len(kept) == first["miss"] + second["miss"]
    assert service.store.list(units.FOLDER) == (scope,), "found by no other namespace"
