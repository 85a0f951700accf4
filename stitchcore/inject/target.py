"""The compilation target of a graph: the instruction-set level of this machine's CPU, or "sm_90".

Where its nodes are placed decides (`of_graph`). Nothing is guessed: a GPU that TensorFlow does not
tell the kind of is a refusal with its reason. Of which kinds there is a record the compiler knows
(device/gpus.py), and says so of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, FrozenSet, Iterable, List, Optional, Tuple

from . import reasons

# Flags of /proc/cpuinfo that each x86-64 level adds (System V ABI supplement).
LEVELS = (
    ("cpu-x86-64-v2", frozenset("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3".split())),
    ("cpu-x86-64-v3", frozenset("avx avx2 bmi1 bmi2 f16c fma movbe".split())),
    ("cpu-x86-64-v4", frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())),
)


def cpu_flags(path: str = "/proc/cpuinfo") -> FrozenSet[str]:
    return frozenset(_of_cpu("flags", path).split())


def cpu_name(path: str = "/proc/cpuinfo") -> str:
    """As the system calls it; "" where it does not."""
    try:
        return _of_cpu("model name", path)
    except OSError:
        return ""


def _of_cpu(field: str, path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(field):
                return line.partition(":")[2].strip()
    return ""


def detect(flags: FrozenSet[str]) -> str:
    """The highest level whose flags, and those of the levels below, are all there; or ""."""
    level = ""
    for name, needed in LEVELS:
        if not needed <= flags:
            break
        level = name
    return level


def runs_on(artifact_target: str, job_target: str) -> bool:
    """True when code for `artifact_target` runs on a machine of `job_target`. A GPU runs what was
    compiled for its major number and no higher minor one."""
    if artifact_target.startswith("sm_") and job_target.startswith("sm_"):
        built, has = artifact_target[3:], job_target[3:]
        return built.isdigit() and has.isdigit() and built[:-1] == has[:-1] and built <= has
    order = [name for name, _ in LEVELS]
    if artifact_target not in order or job_target not in order:
        return False
    return order.index(artifact_target) <= order.index(job_target)


@dataclass(frozen=True)
class Gpu:
    """A GPU as the job's TensorFlow tells it. `capability` is (9, 0), None where it tells none."""

    name: str
    capability: Optional[Tuple[int, int]]


@dataclass(frozen=True)
class Devices:
    """The GPUs that the job's TensorFlow sees, and whether it was built for CUDA."""

    cuda: bool
    gpus: Tuple[Gpu, ...]


def tf_devices() -> Devices:
    """What TensorFlow says of this process's GPUs. Creates no context on any."""
    from tensorflow.python.framework import config
    from tensorflow.python.platform import sysconfig

    gpus = []
    for device in config.get_visible_devices("GPU"):
        details = config.get_device_details(device)
        name = str(details.get("device_name", device.name))
        gpus.append(Gpu(name, details.get("compute_capability")))
    return Devices(bool(sysconfig.get_build_info().get("is_cuda_build")), tuple(gpus))


def is_gpu(device: str) -> bool:
    """Whether a node's device names a GPU."""
    return "GPU:" in device.upper()


def tf_numbers() -> List[int]:
    """CUDA's number of each GPU that TensorFlow counts, which several may share."""
    from tensorflow.python.framework import config

    numbers = []
    for device in config.get_visible_devices("GPU"):
        parts = config.get_logical_device_configuration(device) or [None]
        numbers += [int(device.name.rpartition(":")[2])] * len(parts)
    return numbers


def cuda_numbers(
    placed: Iterable[str], known: Callable[[], List[int]] = tf_numbers
) -> FrozenSet[int]:
    """CUDA's numbers of the GPUs that nodes with the devices `placed` are on."""
    named = {int(device.rpartition(":")[2]) for device in placed if is_gpu(device)}
    numbers = known() if named else []
    return frozenset(numbers[one] for one in named if one < len(numbers))


def of_graph(placed: Iterable[str], cpu: str, devices: Callable[[], Devices] = tf_devices) -> str:
    """The target of a graph whose nodes have the devices `placed`; `cpu` where none is a GPU.

    Raises Refused: NO_DEVICE where TensorFlow lists no GPU; WRONG_TARGET without CUDA, and for GPUs
    of several kinds (which of them a device's number means is the session's affair).
    """
    if not any(map(is_gpu, placed)):
        return cpu
    seen = devices()
    if not seen.cuda:
        raise _wrong("the graph is on a GPU and this TensorFlow was built without CUDA")
    if not seen.gpus:
        raise reasons.Refused(reasons.NO_DEVICE, "the graph is on a GPU, TensorFlow lists none")
    name_of = {_kind(gpu): gpu.name for gpu in seen.gpus}
    if len(name_of) > 1:
        kinds = ", ".join(f"{kind} ({name})" for kind, name in sorted(name_of.items()))
        raise _wrong(f"GPUs of several kinds: {kinds}; show the job one (CUDA_VISIBLE_DEVICES)")
    [kind] = name_of
    return kind


def _kind(gpu: Gpu) -> str:
    if gpu.capability is None:
        raise _wrong(f"TensorFlow tells no compute capability of {gpu.name}")
    return "sm_{}{}".format(*gpu.capability)


def _wrong(detail: str) -> reasons.Refused:
    return reasons.Refused(reasons.WRONG_TARGET, detail)
