"""C source to a shared object: finds a compiler, compiles, and reads its vectorisation report.

Nothing here reads the environment: which compilers to try, the cache folder and the time limit are
arguments. Output is a function of source, compiler and flags, which are also the cache key.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refused
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain import compile_cache

INCLUDE = Path(__file__).resolve().parent.parent / "codegen" / "include"
BATCH = 8
"""Kernels per translation unit: below it the compiler's start-up dominates, above it cores idle."""

_MARKER = re.compile(r"/\* lanes (\S+)(?: (\d+))? \*/")
_SHORT = 16
_SUBJECT = "compiler"
_INSTALL = (
    "no C compiler works here: install gcc (apt-get install gcc), clang, or pip install ziglang"
)


@dataclass(frozen=True)
class Compiler:
    """A C compiler that ran: how to call it, its family, and the version line it printed."""

    command: tuple[str, ...]
    family: str  # "gcc" | "clang"
    version: str


@dataclass(frozen=True)
class LoopReport:
    """What became of the lane loop "kernel.variable": bytes of its vectors, or why it has none."""

    loop: str
    vector_bytes: int  # 0: stayed scalar
    reason: str = ""
    short: bool = False  # so few iterations that the compiler unrolls them


@dataclass(frozen=True)
class CompiledLibrary:
    """A shared object: its bytes, the compiler that made it, and one report per lane loop."""

    data: bytes
    compiler: str
    loops: tuple[LoopReport, ...]

    @property
    def scalar_loops(self) -> tuple[LoopReport, ...]:
        """Lane loops of _SHORT iterations or more, or of unknown many, that stayed scalar."""
        return tuple(loop for loop in self.loops if not loop.vector_bytes and not loop.short)


CANDIDATES: tuple[tuple[str, ...], ...] = (
    ("gcc",),
    ("clang",),
    ("cc",),
    (sys.executable, "-m", "ziglang", "cc"),
)


@lru_cache(maxsize=8)
def find_compiler(candidates: tuple[tuple[str, ...], ...] = CANDIDATES) -> Compiler:
    """The first of `candidates` that runs. Raises Refused(NO_COMPILER) saying what to install."""
    for command in candidates:
        if command[1:3] == ("-m", "ziglang") and importlib.util.find_spec("ziglang") is None:
            continue
        if shutil.which(command[0]) is None:
            continue
        try:
            version_run = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if version_run.returncode == 0:
            version = version_run.stdout.splitlines()[0]
            return Compiler(command, "clang" if "clang" in version_run.stdout else "gcc", version)
    raise Refused(_SUBJECT, Reason.NO_COMPILER, _INSTALL)


def flags(compiler: Compiler, device: Device) -> tuple[str, ...]:
    """Flags for a CPU device record: no fast-math, no contraction (docs/decisions.md 12)."""
    level = device.target.removeprefix("cpu-")
    chosen = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno"]
    chosen += ["-fno-trapping-math", "-fopenmp-simd", "-fno-strict-aliasing"]
    chosen += ["-fvisibility=hidden", "-Wno-unknown-pragmas"]
    chosen.append("-Werror=implicit-function-declaration")
    if device.vector_bytes == 64:
        chosen.append("-mprefer-vector-width=512")
    if "ziglang" in compiler.command:
        chosen += [f"-march={level.replace('-', '_')}", "-target", "x86_64-linux-gnu.2.17"]
        chosen.append("-fno-sanitize=undefined")
    else:
        chosen.append(f"-march={level}")
    if compiler.family == "clang":
        chosen += ["-Rpass=loop-vectorize", "-Rpass-missed=loop-vectorize"]
        chosen += ["-Rpass-analysis=loop-vectorize", "-fno-caret-diagnostics"]
    else:
        # jammed loops around a lane loop are no longer vectorized (gcc 12)
        chosen += ["-fopt-info-vec-optimized-missed", "-fno-loop-unroll-and-jam"]
    return tuple(chosen)


def compile_c(
    source: str,
    device: Device,
    *,
    compiler: Compiler | None = None,
    cache: Path | None = None,
    timeout: float = 120.0,
) -> CompiledLibrary:
    """Compile one translation unit as emit.c renders it.

    Raises Refused(NO_COMPILER) or Refused(COMPILE_FAILED) with the compiler's first errors.
    """
    compiler = compiler or find_compiler()
    key = unit_key(source, compiler, device)
    if cache is not None and (cached := _read(cache, key)) is not None:
        return cached
    with tempfile.TemporaryDirectory(prefix="stitch-compile-") as folder:
        library = _run(source, compiler, device, Path(folder), timeout)
    if cache is not None:
        _write(cache, key, library)
    return library


def batches(kernels: Sequence[Kernel]) -> list[tuple[Kernel, ...]]:
    """Kernels by translation unit."""
    return [tuple(kernels[i : i + BATCH]) for i in range(0, len(kernels), BATCH)]


def command(compiler: Compiler, device: Device) -> list[str]:
    """How `kernels.c` of the working folder becomes `kernels.so` beside it; what the compiler says
    on standard error is for `loop_reports`."""
    options = flags(compiler, device)
    return [*compiler.command, *options, f"-I{INCLUDE}", "kernels.c", "-o", "kernels.so", "-lm"]


def _run(
    source: str, compiler: Compiler, device: Device, folder: Path, timeout: float
) -> CompiledLibrary:
    (folder / "kernels.c").write_text(source)
    try:
        done = subprocess.run(
            command(compiler, device),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"{compiler.version} ran longer than {timeout:.0f} s"
        raise Refused(_SUBJECT, Reason.COMPILE_FAILED, detail) from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:5]
        detail = "; ".join(errors) or done.stderr[-500:]
        raise Refused(_SUBJECT, Reason.COMPILE_FAILED, detail)
    data = (folder / "kernels.so").read_bytes()
    return CompiledLibrary(data, compiler.version, loop_reports(source, done.stderr))


def loop_reports(source: str, text: str) -> tuple[LoopReport, ...]:
    """One report per lane loop marked in `source`, from the compiler's remarks `text`.

    gcc names a vectorised loop by its pragma, its `for` or a statement of its body, so any success
    between pragma and closing brace counts; a lane loop around a serial one is named by a line
    before it. Without a success the most telling remark on those lines is the reason.
    """
    success: dict[int, int] = {}
    missed: dict[int, list[str]] = {}
    pattern = re.compile(r"kernels\.c:(\d+):\d+: (optimized|missed|remark):\s*(.*)")
    for match in map(pattern.match, text.splitlines()):
        if match is None:
            continue
        line, message = int(match[1]), match[3]
        if (width := _vector_bytes(message)) > 0:
            success[line] = max(success.get(line, 0), width)
        elif match[2] != "optimized":
            missed.setdefault(line, []).append(message)
    lines = source.splitlines()
    loops = [
        (marker, range(start, _end_of_block(lines, start) + 1))  # 1-based: from the pragma
        for start, content in enumerate(lines)
        if (marker := _MARKER.search(content)) is not None
    ]
    inside = {number for _, span in loops for number in span}
    spare = {line: width for line, width in success.items() if line not in inside}
    reports = []
    for marker, span in loops:
        width = max(success.get(number, 0) for number in span)
        reasons = [reason for number in span for reason in missed.get(number, [])]
        if not width and any("outer-loop already vectorized" in reason for reason in reasons):
            opening = max((line for line in spare if line < span.start), default=0)
            width = spare.get(opening, 0)
        short = marker[2] is not None and int(marker[2]) < _SHORT
        reports.append(replace(_report(marker[1], width, reasons), short=short))
    return _merged(reports)


def _merged(reports: Sequence[LoopReport]) -> tuple[LoopReport, ...]:
    """A lane loop that is written in several pieces counts by its worst."""
    worst_of: dict[str, LoopReport] = {}
    for report in reports:
        worst = worst_of.get(report.loop, report)
        worst_of[report.loop] = min(worst, report, key=lambda r: r.vector_bytes)
    return tuple(worst_of.values())


def _report(loop: str, width: int, reasons: Sequence[str]) -> LoopReport:
    if width:
        return LoopReport(loop, width)
    failed = [reason for reason in reasons if reason.startswith(("not vectorized", "couldn't"))]
    if not failed and any(re.search("__builtin_mem(cpy|move|set)", r) for r in reasons):
        return LoopReport(loop, 64, "a library copy or fill")
    failed.sort(key=lambda reason: reason.startswith("couldn't"))
    return LoopReport(loop, 0, (failed or list(reasons) or ["no remark"])[0])


def _end_of_block(lines: Sequence[str], start: int) -> int:
    """Index of the line that closes the block which line `start` opens, by its indentation."""
    closing = lines[start][: len(lines[start]) - len(lines[start].lstrip())] + "}"
    return next(i for i in range(start + 1, len(lines)) if lines[i] == closing)


def _vector_bytes(message: str) -> int:
    if (gcc := re.match(r"loop vectorized using (\d+) byte", message)) is not None:
        return int(gcc[1])
    clang = re.match(r"vectorized loop \(vectorization width: (\d+)", message)
    return int(clang[1]) * 4 if clang is not None else 0


@lru_cache(maxsize=1)
def _headers() -> str:
    return "".join(path.read_text() for path in sorted(INCLUDE.glob("stitch_c*.h")))


def unit_key(source: str, compiler: Compiler, device: Device) -> str:
    """All that a translation unit's library is a function of: source, headers, compiler, flags."""
    parts = (source, _headers(), compiler.version, *flags(compiler, device))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(cache: Path, key: str) -> CompiledLibrary | None:
    entry = compile_cache.read(cache, key, "so")
    if entry is None:
        return None
    data, record = entry
    loops = tuple(LoopReport(**loop) for loop in record["loops"])
    return CompiledLibrary(data, record["compiler"], loops)


def _write(cache: Path, key: str, library: CompiledLibrary) -> None:
    record = {"compiler": library.compiler, "loops": [asdict(loop) for loop in library.loops]}
    compile_cache.write(cache, key, "so", library.data, record)
