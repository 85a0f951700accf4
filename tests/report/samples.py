"""Reports for the page's tests: a small one whose names are hostile, and large ones made up."""

from __future__ import annotations

from stitchcore.report.job import Job, JobGraph
from stitchcore.report.schema import Report, ReportKernel, ReportNode, ReportPlanner, ReportRegion

HOSTILE = '</script><script>window.hurt=1</script><img src=x onerror="window.hurt=2">&amp;\'"'
PROOF = {
    "passed": True,
    "ratio": [0.38, 0.4, 0.43],
    "seconds": {"framework": 2e-3, "stitched": 8e-4, "xla": 1e-3},
}


def hostile() -> Report:
    """Every string of it ends whatever it is put into."""
    nodes = (
        ReportNode(HOSTILE + "x", HOSTILE + "Placeholder"),
        ReportNode(HOSTILE + "a", HOSTILE + "Add", 0, inputs=(0,), written=HOSTILE),
        ReportNode(HOSTILE + "dot", "MatMul", reason="library_call", detail=HOSTILE, inputs=(1,),
                   bytes=4096),
        ReportNode(HOSTILE + "m", "Mul", 1, inputs=(2, 1, 0)),
        ReportNode(HOSTILE + "r", "Rsqrt", reason=HOSTILE, inputs=(3,)),
    )  # fmt: skip
    kernels = (
        ReportKernel(HOSTILE + "k0", 3, 1000, 5000, 1, HOSTILE, bytes_before=3000,
                     bytes_after=2000, measured_ns=6000, schemes={"local": 4, HOSTILE: 2}),
        ReportKernel("k1", 1, 500, 700, 2, "kernel k1 {}", refused=HOSTILE, bytes_before=1500,
                     bytes_after=1000, measured_ns=650, schemes={"global": 1, "regional": 2}),
    )  # fmt: skip
    return Report(
        HOSTILE,
        HOSTILE,
        nodes,
        kernels,
        refusals={"library_call": 1, HOSTILE: 1},
        kernels_before=3,
        kernels_after=2,
        bytes_before=4500,
        bytes_after=3000,
        seconds_before=3e-3,
        seconds_after=1e-3,
        seconds={HOSTILE: 1.5},
        figures={HOSTILE: HOSTILE},
        regions=(ReportRegion(HOSTILE, "key", 3, True, 2, 4500, 3000, PROOF, 0, (), 3e-3, 1e-3),),
        scalar_loops=(f"{HOSTILE}: {HOSTILE}",),
        planners=(
            ReportPlanner("exhaustive", 2, 1e-3, 0.1, 0.02),
            ReportPlanner(HOSTILE, 2, 9e-4, 0.5, 0.0, True),
        ),
        bound=HOSTILE,
        sources={HOSTILE + "k0": HOSTILE, "k1": "void k1(void) {}"},
    )


def job() -> Job:
    """A job that saved, of a hostile name."""
    graphs = (
        JobGraph("d" * 64, "a" * 64, "ready", "ok", "", 900, 1.25, 1.2, 1.31),
        JobGraph("e" * 64, "", "refused", "", "few_calls"),
    )
    return Job(HOSTILE, HOSTILE, "cpu", 120.0, 5.0, 20.0, 90.0, 140.0, graphs)


def large(count: int) -> Report:
    """A training step's shape: blocks of a dozen operations, each read again on the way back."""
    nodes = [ReportNode("input", "Placeholder")]
    half = count // 2
    for v in range(1, count):
        inputs = {v - 1} | ({v - 5} if v % 6 == 0 and v > 5 else set())
        if v > half and v % 3 == 0:
            inputs.add(count - v)
        if v % 12 == 0:
            node = ReportNode(f"block{v // 12}/matmul", "MatMul", reason="library_call",
                              inputs=tuple(inputs), bytes=v)  # fmt: skip
        else:
            op = ("Add", "Mul", "Sub", "Exp", "Sum", "RealDiv")[v % 6]
            node = ReportNode(f"block{v // 12}/{op.lower()}_{v}", op, v // 12, inputs=tuple(inputs))
        nodes.append(node)
    kernels = tuple(
        ReportKernel(f"k{n}", 11, 4096, 1000 + n, 2, bytes_before=8192, bytes_after=4096)
        for n in range(count // 12 + 1)
    )
    return Report("a large step", "cpu-x86-64-v4", tuple(nodes), kernels,
                  kernels_before=count, kernels_after=len(kernels),
                  bytes_before=2 * count, bytes_after=count)  # fmt: skip
