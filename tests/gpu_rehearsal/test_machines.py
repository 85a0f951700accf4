"""What a job on a GPU may find on its machine: it ends stitched, or with a reason, and with the
figures of the plain run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from stitchcore.codegen.cuda import render, shared_bytes
from stitchcore.compiler.restart import UNIT_HEADER
from stitchcore.launch.cuda_program import CudaLaunch, launch_table
from stitchcore.launch.cuda_table import DRIVER, Cubin, write
from stitchcore.launch.place import Input, Output
from stitchcore.toolchain import nvrtc
from tests import lean
from tests.gpu_rehearsal import jobs
from tests.gpu_rehearsal.build import fake_gpu
from tests.loop_ir.sample import column_sum

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_nvrtc")]
TOLERANCE = 1e-5
STEPS = 60
COSTS = {"FAKE_GPU_OP_US": "100", "FAKE_GPU_KERNEL_US": "10"}

MACHINES: dict[str, tuple[dict[str, str], str]] = {
    "a slice": ({"FAKE_GPU_MULTIPROCESSORS": "1"}, "stitched"),
    "the multi-process service": ({"FAKE_GPU_SERVICE": "1"}, "kernel_failed"),
    "a driver for CUDA 13": ({"FAKE_GPU_DRIVER": "13000"}, "stitched"),
    "a driver for CUDA 11": ({"FAKE_GPU_DRIVER": "11080"}, "no_device"),
    "sm_61": ({"FAKE_GPU_CAPABILITY": "6.1"}, "wrong_target"),
    "sm_75": ({"FAKE_GPU_CAPABILITY": "7.5"}, "stitched"),
    "sm_100": ({"FAKE_GPU_CAPABILITY": "10.0"}, "stitched"),
    "sm_120": ({"FAKE_GPU_CAPABILITY": "12.0"}, "stitched"),
    "sm_130": ({"FAKE_GPU_CAPABILITY": "13.0"}, "stitched"),
    "no tanh": ({"FAKE_GPU_WITHOUT": "Tanh,TanhGrad"}, "stitched"),
}
"""By name: its settings, and how a job ends. sm_75 has no record, sm_120 neither; NVRTC 12 has no
sm_130, so the driver compiles its PTX. One of this step's kernels has a grid barrier."""


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_a_job_on(machine: str, tmp_path: Path) -> None:
    settings, end = MACHINES[machine]
    arguments = ("custom_loop", "--steps", STEPS)
    plain = jobs.untouched(tmp_path, *arguments, **settings)
    ours = jobs.stitched(tmp_path, *arguments, **settings, **COSTS)
    np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
    ends = set(ours.refusals or {}) or {step["status"] for step in ours.steps}
    assert ends == {end}, ours


@pytest.mark.nightly
def test_a_worker_that_cannot_have_the_gpu_proves_nothing(tmp_path: Path) -> None:
    """The job has it alone (compute mode). Nobody has leave to try what was not proved."""
    settings = {"FAKE_GPU_EXCLUSIVE": str(tmp_path / "taken")}
    arguments = ("custom_loop", "--steps", 5)
    plain = jobs.untouched(tmp_path, *arguments)
    ours = jobs.stitched(tmp_path, *arguments, proved=True, **settings)
    np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
    assert ours.refusals == {"unmeasured": 1}, ours


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [38, 40])
def test_a_job_that_fits_is_not_ended_by_us(limit: int, tmp_path: Path) -> None:
    """On a GPU that has little more MiB than the untouched job holds, 33 to 37."""
    little = {"FAKE_GPU_MEMORY_MB": str(limit)}
    plain = jobs.untouched(tmp_path, "tight", **little)
    assert plain.made["peak"] > 0.75 * (limit << 20), plain
    ours = jobs.stitched(tmp_path, "tight", **little, **COSTS)
    np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
    [step] = ours.steps
    assert step["status"] in ("stitched", "rolled_back", "left"), ours
    if step["status"] != "stitched":
        assert any("memory" in line for line in ours.lines), ours


@pytest.mark.nightly
def test_a_step_without_room_is_left(tmp_path: Path) -> None:
    """Leave for 8 MiB more says that a stitched step may take them: no GPU with 40 has them."""
    little = {"FAKE_GPU_MEMORY_MB": "40"}
    plain = jobs.untouched(tmp_path, "tight", **little)
    ours = jobs.stitched(tmp_path, "tight", **little, **COSTS, STITCH_MEMORY=str(8 << 20))
    np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
    assert ours.refusals == {"memory": 1} and "a swap takes 8" in ours.lines[0], ours


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["output", "guard"])
def test_a_kernel_that_gets_no_memory_leaves_its_work(point: str, tmp_path: Path) -> None:
    """In the middle of a job: TensorFlow's operations do that step's, and a reason is told."""
    plain = jobs.untouched(tmp_path, "tight")
    ours = jobs.stitched(tmp_path, "tight", fault=(f"native:{point}", 5), **COSTS)
    np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
    assert ours.refusals == {"kernel_failed" if point == "output" else "guard_failed": 1}, ours


@pytest.mark.nightly
def test_two_jobs_on_one_gpu(tmp_path: Path) -> None:
    """At the same time, with a store of their own each."""
    arguments = ("custom_loop", "--steps", STEPS)
    plain = jobs.untouched(tmp_path, *arguments)
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda folder: jobs.stitched(folder, *arguments, **COSTS), folders))
    for ours in both:
        np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
        assert [step["status"] for step in ours.steps] == ["stitched"], ours


@pytest.mark.parametrize(("what", "code"), [("read", -signal.SIGSEGV), ("kernel", 0)])
def test_an_address_of_the_other_side_is_caught(what: str, code: int, tmp_path: Path) -> None:
    """Of the rehearsal itself: the host that reads device memory faults; a kernel that is given
    host memory fails, and so does all that comes after it."""
    kernel, source = column_sum(), render([column_sum()])
    launch = CudaLaunch(kernel, (Input(0),), (Output(0),), 0, kernel.threads, shared_bytes(kernel))
    cubin = Cubin("sm_90", nvrtc.compile_cuda(source, "sm_90").data)
    table, out, dump = tmp_path / "table", tmp_path / "out.json", tmp_path / "dump"
    table.write_bytes(write(launch_table([launch], [[cubin]], ("B",), 1, 1, DRIVER)))
    dump.mkdir()
    (dump / "00_emit.cu").write_text(f"{UNIT_HEADER}\n{source}")
    environment = lean.environment(
        PYTHONPATH=str(jobs.ROOT),
        FAKE_GPU_DEVICE=str(fake_gpu().device),
        STITCH_DUMP=str(dump),
    )
    program = [str(jobs.PROGRAMS / "astray.py"), str(out), str(table), what]
    command = [sys.executable, "-m", "tests.gpu_rehearsal.with_gpu", *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-2000:]
    assert json.loads(out.read_text()) == {"code": 719 if what == "kernel" else 0}


def test_we_copy_nothing_between_host_and_device(tmp_path: Path) -> None:
    """In no step: not by the driver ourselves, and TensorFlow no more than in the plain run."""
    arguments = ("custom_loop", "--steps", STEPS)
    logs = {name: tmp_path / f"{name}.log" for name in ("plain", "ours")}
    jobs.untouched(tmp_path, *arguments, FAKE_GPU_LOG=str(logs["plain"]))
    ours = jobs.stitched(tmp_path, *arguments, FAKE_GPU_LOG=str(logs["ours"]), **COSTS)
    [step] = ours.steps
    assert step["status"] == "stitched" and step["steps"] >= 20, ours
    lines = {name: [line.split()[1:3] for line in log.read_text().splitlines()]
             for name, log in logs.items()}  # fmt: skip
    put = {name: [words[1] for words in found if words[0] == "put"]
           for name, found in lines.items()}  # fmt: skip
    assert not [what for what in put["ours"] if what.startswith("cuMemcpy")]
    assert copies_of_steps(put["ours"]) == copies_of_steps(put["plain"])


def copies_of_steps(put: list[str]) -> list[int]:
    """Copies to the device in each of the last 20 steps: a step ends where its loss comes down."""
    ends = [number for number, what in enumerate(put) if what == "copy_dtoh"][-26:-5]
    steps = [put[begin:end] for begin, end in pairwise(ends)]
    return [step.count("copy_htod") for step in steps]
