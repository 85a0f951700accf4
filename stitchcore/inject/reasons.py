"""The closed list of reasons, as strings: the job side imports nothing of the rest of stitchcore.

A test keeps it equal to `stitchcore.errors.Reason`.
"""

from __future__ import annotations

INPUT_PIPELINE = "input_pipeline"
FED_TENSOR = "fed_tensor"
FEW_CALLS = "few_calls"
INITIALIZATION = "initialization"
COLLECTIVE = "collective"
SWAP_GROUP = "swap_group"
KERNEL_RANDOM_STATE = "kernel_random_state"
REGION_TOO_SMALL = "region_too_small"
NO_ARTIFACT = "no_artifact"
DEADLINE = "deadline"
WORKER_FAILED = "worker_failed"
STORE_UNREADABLE = "store_unreadable"
BAD_SIGNATURE = "bad_signature"
BAD_ARTIFACT = "bad_artifact"
NO_DEVICE = "no_device"
WRONG_TARGET = "wrong_target"
SLOWER = "slower"
MEMORY = "memory"
GUARD_FAILED = "guard_failed"
CRASHED_BEFORE = "crashed_before"
KERNEL_FAILED = "kernel_failed"
XLA_NOT_LIFTED = "xla_not_lifted"
UNSUPPORTED_VERSION = "unsupported_version"
CHILD_PROCESS = "child_process"
HOOK_ERROR = "hook_error"
GATEWAY_UNREACHABLE = "gateway_unreachable"
GATEWAY_UNTRUSTED = "gateway_untrusted"
GATEWAY_DENIED = "gateway_denied"
GATEWAY_ERROR = "gateway_error"
REVOKED = "revoked"
CACHE_FULL = "cache_full"
UNMEASURED = "unmeasured"
IMPLAUSIBLE = "implausible"
STRUCTURE = "structure"
WRONG_RESULT = "wrong_result"


class Refused(Exception):
    """Something is left as it was; `reason` is one of the values above."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


def of(error: Exception) -> Refused:
    """`error` as a refusal: an error of our own, where it is none."""
    if isinstance(error, Refused):
        return error
    return Refused(HOOK_ERROR, f"{type(error).__name__}: {error}")
