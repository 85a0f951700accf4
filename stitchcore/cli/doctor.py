"""`stitch doctor`: what works on this machine, and what to install where something does not.

Exit code 0 when a training job can be stitched here, 1 when not. `--python` names the job's
interpreter where it is another one.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from stitchcore import options as settings
from stitchcore.artifact import sign
from stitchcore.cli import common
from stitchcore.cli.optimize_child import PACKAGE
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refused
from stitchcore.inject import plugin
from stitchcore.options import Options
from stitchcore.report import reasons
from stitchcore.sandbox import isolate
from stitchcore.toolchain import c_compiler, nvrtc

SUPPORTED = "{}.{} to {}.{}".format(*plugin.OLDEST, *plugin.NEWEST)
MARKS = {"ok": "ok", "missing": "missing", "absent": "-"}
COMPILED = "int64_t answer(void) { return 42; }"

_LOAD_PLUGIN = """
import os, sys
import tensorflow
from stitchcore.inject import plugin, settings
version = tuple(int(part) for part in tensorflow.__version__.split(".")[:2])
plugin.load(settings.of_this_process().native, version)
print(tensorflow.__version__)
"""


@dataclass(frozen=True)
class Finding:
    """One line: `state` is ok, missing (stitching cannot work) or absent (an option is not there).
    `mend` says what to do."""

    subject: str
    state: str
    detail: str
    mend: str = ""


@click.command("doctor")
@click.option("--python", "interpreter", default=sys.executable, help="The job's interpreter.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(interpreter: str, as_json: bool) -> None:
    """Say what works on this machine and what to install."""
    output = common.Output(as_json)
    options = settings.of_this_process()
    checks: list[Callable[[], Finding]] = [
        lambda: _python(interpreter),
        lambda: _plugin(interpreter),
        _isa,
        _compiler,
        lambda: _store(options),
        lambda: _key(options),
        _isolation,
        _gpu,
        _nvrtc,
        _xla,
    ]
    findings = []
    with output.console.status("looking"):
        for check in checks:
            findings.append(check())
    works = all(finding.state != "missing" for finding in findings)
    if as_json:
        output.document({"works": works, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings, works, output)
    raise SystemExit(0 if works else 1)


def _show(findings: list[Finding], works: bool, output: common.Output) -> None:
    for finding in findings:
        told = f"{MARKS[finding.state]:<7} {finding.subject}: {finding.detail}"
        common.say(told, output.console)
        if finding.mend:
            common.say(f"        to mend it: {finding.mend}", output.console)
    verdict = (
        "Training jobs can be stitched here." if works else "Jobs cannot be stitched here yet."
    )
    common.say(verdict, output.console)


def _python(interpreter: str) -> Finding:
    code = "import sys, platform; print(platform.python_version(), sys.version_info >= (3, 9))"
    answer = _ask(interpreter, code)
    if isinstance(answer, Finding):
        return answer
    version, enough = answer.split()
    state, mend = ("ok", "") if enough == "True" else ("missing", "use 3.9 or later")
    return Finding("Python of the job", state, f"{version} ({interpreter})", mend)


def _plugin(interpreter: str) -> Finding:
    """TensorFlow and the plug-in in it, tried as the job would."""
    subject = "TensorFlow and plug-in"
    version = _ask(interpreter, _LOAD_PLUGIN, subject)
    if isinstance(version, Finding):
        return version
    return Finding(subject, "ok", f"TensorFlow {version}, plug-in and shim of this version load")


def _ask(interpreter: str, code: str, subject: str = "Python of the job") -> str | Finding:
    """The last line that `code` prints in the job's interpreter, or what went wrong."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    env.pop("STITCH_STORE", None)
    command = [interpreter, "-c", code]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(subject, "missing", str(error), "pass --python PATH")
    if done.returncode == 0 and done.stdout.strip():
        return done.stdout.strip().splitlines()[-1]
    lines = done.stderr.strip().splitlines()
    return Finding(subject, "missing", lines[-1] if lines else "no output", _mend(done.stderr))


def _mend(error: str) -> str:
    if "No module named 'tensorflow'" in error:
        return f"pip install tensorflow-cpu ({SUPPORTED}) in the job's environment"
    if "unsupported_version" in error:
        needed = re.search(r"python -m stitchcore.inject.build --version [0-9.]+[0-9]", error)
        return needed.group() if needed else f"TensorFlow {SUPPORTED}"
    if "is missing" in error and "plugin" in error:
        return "python -m stitchcore.inject.build"
    return "run the command by hand: python -c 'import tensorflow'"


def _isa() -> Finding:
    target = common.host_target()
    if target in DEVICES:
        return Finding("CPU", "ok", f"{target}, {os.cpu_count()} cores")
    detail = f"{platform.machine()}: below x86-64-v2, or not x86-64"
    return Finding("CPU", "missing", detail, "use an x86-64 machine with SSE4.2")


def _compiler() -> Finding:
    """A compiler that is found, and compiles."""
    target = common.host_target()
    try:
        compiler = c_compiler.find_compiler()
        if target in DEVICES:
            source = f"#include <stdint.h>\n{COMPILED}\n"
            c_compiler.compile_c(source, DEVICES[target], compiler=compiler)
    except Refused as refused:
        mend = reasons.mend(Reason.NO_COMPILER.value)
        return Finding("C compiler", "missing", refused.refusal.detail, mend)
    return Finding("C compiler", "ok", compiler.version)


def _store(options: Options) -> Finding:
    probe = options.store / f".probe-{os.getpid()}"
    try:
        options.store.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        mend = "STITCH_STORE=DIR or --store DIR"
        return Finding("store", "missing", f"{options.store}: {error.strerror}", mend)
    return Finding("store", "ok", str(options.store))


def _key(options: Options) -> Finding:
    try:
        public = sign.public_hex(sign.load_or_create_key(options.key))
    except (OSError, ValueError) as error:
        return Finding("signing key", "missing", str(error), f"remove or mend {options.key}")
    return Finding("signing key", "ok", f"{options.key} (public {public[:12]}...)")


def _isolation() -> Finding:
    """Whether the worker's child, which parses graphs, can be cut off from the network."""
    why = isolate.network_open()
    if not why:
        return Finding("isolation", "ok", "the worker has no network and no capabilities")
    detail = f"the worker can reach the network: {why}"
    return Finding("isolation", "absent", detail, "allow user namespaces (unshare)")


def _gpu() -> Finding:
    driver = ctypes.util.find_library("cuda")
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if driver is None or not nodes:
        return Finding("GPU", "absent", "none found: CPU kernels only")
    detail = f"{len(nodes)} found, {driver}; kernels compile as CUDA but do not run on it yet"
    return Finding("GPU", "absent", detail)


def _nvrtc() -> Finding:
    try:
        version = nvrtc.nvrtc_version()
    except Refused:
        mend = "pip install 'stitchcore[cuda12]', to compile for sm_NN"
        return Finding("NVRTC", "absent", "not installed", mend)
    return Finding("NVRTC", "ok", f"{version}: kernels can be compiled as CUDA C++")


def _xla() -> Finding:
    try:
        version = importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        mend = "pip install jaxlib, to see XLA beside our kernels in `stitch bench`"
        return Finding("jaxlib", "absent", "not installed", mend)
    return Finding("jaxlib", "ok", f"{version}: `stitch bench` compares with XLA")
