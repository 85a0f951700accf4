"""A worker by hand: answers a request with two kinds of kernels written here, not generated.

Replaces every Sqrt of a float tensor by a tensor kernel (alias allowed) and every
AssignSubVariableOp of one by an in-place variable update. `behaviour` spoils the kernels:

    good        computes what TensorFlow does
    wrong       result times 1.5
    rounded     differs from TensorFlow in the last bits of a root
    slow        wastes time in every call, and is rounded
    heavy       holds HEAVY_BYTES more while the root of the largest matrix is computed
    other       as good, under another key
    crash       dereferences a null pointer
    fails       returns an error at every call
    fails_late  returns an error at every call after the 300th
    guard       asks for a shape that its input does not have
    truncated   the library file is cut after signing its hash
    unsigned    the signature is not the key's
    level       the artifact claims a target above the machine's
    graph       the artifact is signed for another graph
    version     the artifact is signed for another TensorFlow
    same        the patch is empty: the graph stays as it is
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stitchcore.inject import digest
from stitchcore.inject.contract import MANIFEST_FORMAT

HEAD = """
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static void waste(void) { volatile double x = 0; for (long i = 0; i < WASTE; i++) x += i; }
static void hold(void) {
  void *held = mmap(0, HEAVY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct timespec pause = {0, 10000000};
  memset(held, 1, HEAVY);
  nanosleep(&pause, 0);
  munmap(held, HEAVY);
}
#define ARGUMENTS void *const *b, const int64_t *s, char *scratch, int64_t phase, int64_t t0, \\
  int64_t t1
"""
ROWS = 64  # elements of a task
HEAVY_BYTES, HEAVY_ELEMENTS = 256 * 2**20, 16384


def kernel_source(symbol: str, body: str) -> str:
    loop = f"for (int64_t i = t0 * {ROWS}; i < t1 * {ROWS} && i < n; i++)"
    return (
        f"int64_t {symbol}(ARGUMENTS) {{ int64_t n = s[0]; CRASH; if (SPIN) waste();"
        f" if (HEAVY > 1 && t0 == 0 && n == {HEAVY_ELEMENTS}) hold();"
        f" {loop} {body} return FAILURE; }}\n"
    )


def programs(dims: list[int]) -> list[int]:
    words = [len(dims)]
    for dim in dims:
        words += [2, 0, dim]
    return words


def shape_of(node: Any) -> list[int] | None:
    shape = node.attr["_output_shapes"].list.shape[0]
    dims = [dim.size for dim in shape.dim]
    return dims if not shape.unknown_rank and dims and all(d > 0 for d in dims) else None


def table(
    dims: list[int], inputs: list[tuple[int, int]], output: tuple[int, int], guarded: list[int]
) -> list[int]:
    """Kernel symbol 0 is the element count, which the table gets from an axis of 1-d view sizes.

    `guarded` is the shape that the last input must have."""
    count = 1
    for dim in dims:
        count *= dim
    words = [1, 1, inputs[-1][1], 0, 1, dims[0] - count]  # s0 = dim 0 - (dim 0 - count)
    words += [len(inputs), *(word for pair in inputs for word in pair)]
    words += [1, *output, *programs(dims)]
    words += [1, 0, 0]  # the first input and the output may share memory
    words += [1, inputs[-1][1], *programs(guarded)]
    words += [2, 0, 0]  # no scratch
    return [*words, 1, 2, 0, -(-count // ROWS)]


def fusion(graph_class: Any, types: list[int], results: list[int], words: list[int], key: str,
           work: int) -> str:  # fmt: skip
    node = graph_class().node.add()
    node.attr["Tin"].list.type.extend(types)
    node.attr["Tout"].list.SetInParent()
    node.attr["Tout"].list.type.extend(results)
    node.attr["kernel"].s = key.encode()
    node.attr["table"].list.i.extend(words)
    node.attr["errors"].list.SetInParent()
    node.attr["work"].i = work
    return base64.b64encode(node.SerializeToString()).decode()


def make_patch(graph: Any, ids: Any, work: int, behaviour: str) -> dict[str, Any]:
    by_name = {node.name: node for node in graph.node}
    regions: list[dict[str, Any]] = []

    def reference(text: str) -> str:
        name, port = digest.parse_reference(text)
        return f"^{ids[name]}" if port < 0 else f"{ids[name]}:{port}"

    for node in graph.node if behaviour != "same" else ():
        number = ids[node.name]
        inputs = [reference(text) for text in node.input]
        if node.op == "Sqrt" and node.attr["T"].type == 1 and shape_of(node):
            dims = shape_of(node) or []
            guarded = [dims[0] + 1, *dims[1:]] if behaviour == "guard" else dims
            words = table(dims, [(0, 0)], (0, 0), guarded)
            attr = fusion(type(graph), [1], [1], words, "k" * 64 + ":root", work)
        elif node.op == "AssignSubVariableOp" and node.attr["dtype"].type == 1:
            value = by_name[digest.parse_reference(node.input[1])[0]]
            if not shape_of(value):
                continue
            dims = shape_of(value) or []
            guarded = [dims[0] + 1, *dims[1:]] if behaviour == "guard" else dims
            words = table(dims, [(1, 0), (0, 1)], (1, 0), guarded)
            attr = fusion(type(graph), [20, 1], [], words, "k" * 64 + ":subtract", work)
        else:
            continue
        name = f"k{number}"
        added = {"name": name, "op": "StitchedFusion", "attr": attr, "device_of": number,
                 "inputs": inputs}  # fmt: skip
        rewire = [[f"^{number}", f"^+{name}"]]
        if node.op == "Sqrt":
            rewire.append([f"{number}:0", f"+{name}:0"])
        regions.append({"name": name, "remove": [number], "add": [added], "rewire": rewire,
                        "controls": []})  # fmt: skip
    return {"regions": regions}


def library(behaviour: str, folder: Path) -> bytes:
    factor = "1.5f * " if behaviour == "wrong" else ""
    rounding = "1.0000001f * " if behaviour in ("rounded", "slow") else factor
    source = HEAD.replace("WASTE", "3000000" if behaviour == "slow" else "0")
    source = f"#define HEAVY {HEAVY_BYTES if behaviour == 'heavy' else 1}l\n" + source
    crash = "*(volatile int *)0 = 1" if behaviour == "crash" else ""
    source += f"#define CRASH {crash}\n#define SPIN {1 if behaviour == 'slow' else 0}\n"
    failure = {"fails": "1", "fails_late": "++calls > 300"}.get(behaviour, "0")
    source += f"static long calls;\n#define FAILURE {failure}\n"
    source += kernel_source("root", f"((float *)b[1])[i] = {rounding}sqrtf(((float *)b[0])[i]);")
    difference = "((float *)b[0])[i] - ((float *)b[1])[i]"
    source += kernel_source("subtract", f"((float *)b[2])[i] = {factor}({difference});")
    path = folder / "kernels.c"
    path.write_text(source)
    target = folder / "kernels.so"
    subprocess.run(
        ["gcc", "-O2", "-fno-math-errno", "-shared", "-fPIC", path, "-o", target, "-lm"],
        check=True,
    )
    return target.read_bytes()


def answer(store: Path, key_file: Path, behaviour: str, work: int = 0) -> int:
    """Answers every request of `store`; returns how many fusions the largest patch has."""
    from tensorflow.core.framework import graph_pb2

    from stitchcore.artifact import sign

    key = sign.load_or_create_key(key_file)
    most = 0
    for request in sorted((store / "requests").glob("[0-9a-f]*")):
        meta = json.loads((request / "meta.json").read_text())
        graph = graph_pb2.GraphDef.FromString((request / "graph.pb").read_bytes())
        numbering = digest.number(graph, meta["preserve"])
        assert numbering.digest == request.name, "both sides number alike"
        folder = store / "artifacts" / request.name
        folder.mkdir(parents=True, exist_ok=True)
        data = library(behaviour, folder)
        patch = make_patch(graph, numbering.ids, work, behaviour)
        most = max(most, len(patch["regions"]))
        manifest = {
            "format": MANIFEST_FORMAT, "abi": 1,
            "key": request.name[:: -1 if behaviour == "other" else 1],
            "digest": "0" * 64 if behaviour == "graph" else request.name,
            "tf": "2.99" if behaviour == "version" else meta["tf"],
            "target": "cpu-x86-64-v9" if behaviour == "level" else meta["target"],
            "compiler": "by hand", "patch": patch,
            "libraries": [{"file": "kernels_00.so", "sha256": hashlib.sha256(data).hexdigest()}],
            "kernels": [{"key": "k" * 64, "library": 0, "symbol": symbol, "name": symbol}
                        for symbol in ("root", "subtract")],
        }  # fmt: skip
        text = json.dumps(manifest).encode()
        (folder / "manifest.json").write_bytes(text)
        signature = sign.sign(key, text + b"x" if behaviour == "unsigned" else text)
        (folder / "manifest.sig").write_bytes(signature)
        cut = len(data) // 2 if behaviour == "truncated" else len(data)
        (folder / "kernels_00.so").write_bytes(data[:cut])
        answers = store / "answers"
        answers.mkdir(exist_ok=True)
        temporary = answers / f".{request.name}"
        temporary.write_text(json.dumps({"status": "ready", "key": request.name}))
        temporary.rename(answers / f"{request.name}.json")
    return most


@contextmanager
def at_work(store: Path, key_file: Path, behaviour: str) -> Iterator[None]:
    """A worker that answers what arrives, in a thread of this process."""
    importlib.import_module("tensorflow")  # seconds, that a job would not wait for
    ended = threading.Event()

    def work() -> None:
        done: set[str] = set()
        while not ended.wait(0.05):
            requests = {path.name for path in (store / "requests").glob("[0-9a-f]*")}
            if requests - done:
                answer(store, key_file, behaviour)
                done |= requests

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
