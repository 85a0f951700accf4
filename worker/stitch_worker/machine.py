"""What this machine is to a worker or its compiler: what it compiles for, and that it confines."""

from __future__ import annotations

import logging
from importlib import metadata

from stitchcore.device.host import host
from stitchcore.errors import Reason, Refused
from stitchcore.sandbox import isolate
from stitchcore.service.startup import needed
from stitchcore.toolchain import cuda_compiler
from stitchcore.toolchain.c_compiler import find_compiler

log = logging.getLogger("stitch.worker")
CONFINE = (
    "a kernel with Landlock (Linux 5.13) and libseccomp2, which a restricted pod may use; or user "
    "namespaces, which seccompProfile of the worker's entry allows (docs/images.md)"
)


def found(requested: str) -> tuple[str, str]:
    """The target and TensorFlow's minor version of requests that are compiled here. Raises
    CannotStart."""
    with needed("this machine cannot serve", "`stitch doctor` tells what it lacks", Refused):
        return served(requested, host().target), tensorflow_minor()


def confined() -> None:
    """Compile children are confined here, and what killed processes left of theirs is removed.
    Raises CannotStart."""
    with needed("compile children would not be confined", CONFINE):
        if reachable := isolate.open_to_children():
            raise ValueError("; ".join(f"{what}: {why}" for what, why in reachable.items()))
    if swept := isolate.sweep():
        log.info("%d folders of children whose makers were killed: removed", swept)


def served(requested: str, processor: str) -> str:
    """The target of this machine's queue: its own processor, or a GPU that it can compile for.

    Raises Refused: NO_COMPILER, and WRONG_TARGET for what it cannot compile for.
    """
    if not requested.startswith("sm_"):
        find_compiler()
        if requested not in ("", processor):
            detail = (
                f"this machine is {processor}: a region is verified on the processor it is made for"
            )
            raise Refused(requested, Reason.WRONG_TARGET, detail)
        return processor
    cuda_compiler.require(requested)
    log.info(
        "compiling for %s: verified and timed where children find such a GPU and a TensorFlow that "
        "sees it, else %s (the artifact says why)", requested, Reason.UNMEASURED.value,
    )  # fmt: skip
    return requested


def tensorflow_minor() -> str:
    """The installed TensorFlow's "2.21", without importing it. Raises Refused(NO_TENSORFLOW)."""
    for package in ("tensorflow", "tensorflow-cpu", "tensorflow-intel"):
        try:
            return ".".join(metadata.version(package).split(".")[:2])
        except metadata.PackageNotFoundError:
            continue
    raise Refused("worker", Reason.NO_TENSORFLOW, "install the version that your jobs have")
