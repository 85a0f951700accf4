"""Refusals: the closed list of reasons why something was left as it was, and their error.

A refusal is a value, not a fallback: each is reported and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Closed list. The value is what reports, metrics and the job's one-line message show."""

    # the graph, before regions are cut
    NOT_ALLOWED_OPERATION = "not_allowed_operation"
    STATEFUL_RANDOM = "stateful_random"
    RANDOM_STREAM = "random_stream"
    DATA_DEPENDENT_ERROR = "data_dependent_error"
    REF_VARIABLE = "ref_variable"
    SPARSE_VARIABLE = "sparse_variable"
    UNORDERED_VARIABLE = "unordered_variable"
    INPUT_PIPELINE = "input_pipeline"
    FED_TENSOR = "fed_tensor"
    FEW_CALLS = "few_calls"
    INITIALIZATION = "initialization"
    KERNEL_RANDOM_STATE = "kernel_random_state"
    DEVICE_BOUNDARY = "device_boundary"
    COLLECTIVE = "collective"
    REGION_TOO_SMALL = "region_too_small"
    # lowering and import
    UNKNOWN_RANK = "unknown_rank"
    LOWERING_FAILED = "lowering_failed"
    ELIDED_CONSTANT = "elided_constant"
    PARSE_ERROR = "parse_error"
    DOES_NOT_UNIFY = "does_not_unify"
    UNKNOWN_OPCODE = "unknown_opcode"
    UNSUPPORTED_TYPE = "unsupported_type"
    UNSUPPORTED_LAYOUT = "unsupported_layout"
    # planning and scheduling
    LIBRARY_CALL = "library_call"
    CONTROL_FLOW = "control_flow"
    UNSUPPORTED_OPCODE = "unsupported_opcode"
    CYCLE = "cycle"
    NOT_PROFITABLE = "not_profitable"
    TOO_MANY_BUFFERS = "too_many_buffers"
    MEMORY = "memory"
    STEP_LIMIT = "step_limit"
    # building, proving, measuring
    NO_COMPILER = "no_compiler"
    NO_DEVICE = "no_device"
    COMPILE_FAILED = "compile_failed"
    SHARED_MEMORY = "shared_memory"
    REGISTERS = "registers"
    WRONG_RESULT = "wrong_result"
    SLOWER = "slower"
    # the job side
    NO_ARTIFACT = "no_artifact"
    DEADLINE = "deadline"
    WORKER_FAILED = "worker_failed"
    STORE_UNREADABLE = "store_unreadable"
    BAD_SIGNATURE = "bad_signature"
    BAD_ARTIFACT = "bad_artifact"
    WRONG_TARGET = "wrong_target"
    STRUCTURE = "structure"
    GUARD_FAILED = "guard_failed"
    CRASHED_BEFORE = "crashed_before"
    KERNEL_FAILED = "kernel_failed"
    XLA_NOT_LIFTED = "xla_not_lifted"
    NO_TENSORFLOW = "no_tensorflow"
    COMMAND_FAILED = "command_failed"
    NOT_IMPORTED = "not_imported"
    EAGER = "eager"
    CHILD_PROCESS = "child_process"
    UNSUPPORTED_VERSION = "unsupported_version"
    HOOK_ERROR = "hook_error"
    # the job side as a gateway's client
    GATEWAY_UNREACHABLE = "gateway_unreachable"
    GATEWAY_UNTRUSTED = "gateway_untrusted"
    GATEWAY_DENIED = "gateway_denied"
    GATEWAY_ERROR = "gateway_error"
    SWAP_GROUP = "swap_group"
    REVOKED = "revoked"
    CACHE_FULL = "cache_full"
    UNMEASURED = "unmeasured"
    IMPLAUSIBLE = "implausible"
    # the gateway
    NO_WORKER_FOR_TARGET = "no_worker_for_target"
    # the worker
    GRAPH_TOO_LARGE = "graph_too_large"
    DIGEST_MISMATCH = "digest_mismatch"
    QUARANTINED = "quarantined"
    LEASE_LOST = "lease_lost"


@dataclass(frozen=True)
class Refusal:
    """One thing left as it was: what it is, why, and the detail a reader needs to act."""

    subject: str
    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason.value}" + (f" ({self.detail})" if self.detail else "")


class CheckFailed(Exception):
    """A check that is part of an operation's meaning does not hold for this data; the message is
    the one that the framework would raise."""

    @classmethod
    def of(cls, message: str, reported: int) -> CheckFailed:
        """`message` with the reported value, where it has a place for one."""
        return cls(message.replace(REPORTED, str(reported)))


REPORTED = "{}"
"""Where a check's message names the value that did not pass."""


def worse(first: int, second: int) -> int:
    """Of two reported values the one TensorFlow names: the least if negative, else the most."""
    low = min(first, second)
    return low if low < 0 else max(first, second)


class Refused(Exception):
    """Raised inside a stage when its whole input must be refused; carries the Refusal."""

    def __init__(self, subject: str, reason: Reason, detail: str = "") -> None:
        self.refusal = Refusal(subject, reason, detail)
        super().__init__(str(self.refusal))
