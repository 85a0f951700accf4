"""Runs a program with faults on purpose in the job side:

    faulty.py FAULT[+FAULT] OCCASION PROGRAM [ARGUMENT...]

A fault is native:POINT or native:POINT:NUMBER (of the kernel; native/exports.h has the points),
graph:CHANGE (of the patched graph), hook:METHOD, events:write, clock:jump, store:gone. OCCASION is
the pass at which it happens. Without the hook in the process the program runs as it is.
"""

from __future__ import annotations

import importlib
import itertools
import os
import runpy
import shutil
import sys
import time

importlib.import_module("tensorflow")  # which installs the hook
faults, occasion, program = sys.argv[1].split("+"), int(sys.argv[2]), sys.argv[3]


def raising(owner, name):
    """Has `owner.name` raise at its `occasion`-th call, and ever after."""
    original, calls = getattr(owner, name), itertools.count(1)

    def method(*given, **named):
        if next(calls) >= occasion:
            raise RuntimeError("a fault on purpose")
        return original(*given, **named)

    setattr(owner, name, method)


def arm_native(inject, place):
    point, _, number = place.partition(":")
    load = inject.program.load_kernels

    def load_kernels(plugin, artifact, gpus):
        keys = load(plugin, artifact, gpus)
        named = sorted(key for key in keys if ":" in key)
        plugin.arm_fault(point, named[int(number)] if number else "", occasion)
        return keys

    inject.program.load_kernels = load_kernels


def change(graph, place):
    fusions = [node for node in graph.node if node.op in ("StitchedFusion", "StitchedUpdate")]
    first = fusions[0]
    if place == "dtype":
        types = first.attr["Tin"].list.type
        types[0] = 2 if types[0] != 2 else 1
    elif place == "operation":
        first.op = "NoSuchOperation"
    elif place == "input":
        del first.input[0]
    elif place == "attribute":
        del first.attr["table"]
    elif place == "alone":
        for node in fusions:
            node.attr["fallback"].s = b""


def arm_graph(inject, place):
    make = inject.program.stitched_graph

    def stitched_graph(*given):
        made = make(*given)
        change(made.graph, place)
        return made

    inject.program.stitched_graph = stitched_graph


def arm(inject, kind, place):
    if kind == "native":
        arm_native(inject, place)
    elif kind == "graph":
        arm_graph(inject, place)
    elif kind == "hook":
        raising(inject.hook.Hook, place)
    elif kind == "events":
        raising(inject.client.Events, place)
    elif kind == "clock":
        clock, calls = time.time, itertools.count()
        time.time = lambda: clock() + (-1) ** next(calls) * 86400.0
    elif kind == "store":
        original, calls = inject.hook.Hook.choose, itertools.count(1)

        def choose(self, caller):
            if next(calls) == occasion:
                shutil.rmtree(os.environ["STITCH_STORE"], ignore_errors=True)
            return original(self, caller)

        inject.hook.Hook.choose = choose


if "stitch_inject" in sys.modules:
    for fault in faults:
        arm(sys.modules["stitch_inject"], *fault.partition(":")[::2])
del sys.argv[:3]
runpy.run_path(program, run_name="__main__")
