"""What each reason means to who wrote the script, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping

from stitchcore.errors import Reason

MEANINGS: Mapping[Reason, str] = {
    Reason.NOT_ALLOWED_OPERATION: "its operation is not on the list of those that can be stitched",
    Reason.STATEFUL_RANDOM: "it draws random numbers, whose streams TensorFlow keeps",
    Reason.RANDOM_STREAM: "it draws random numbers, whose streams TensorFlow keeps",
    Reason.DATA_DEPENDENT_ERROR: "TensorFlow raises an error for some of its inputs",
    Reason.REF_VARIABLE: "it uses a TF1 ref variable; resource variables can be stitched",
    Reason.SPARSE_VARIABLE: "rows of its variable are looked up or updated one by one",
    Reason.UNORDERED_VARIABLE: "nothing orders this use of a variable and a write of it",
    Reason.INPUT_PIPELINE: "it belongs to the input pipeline",
    Reason.FEW_CALLS: "the function was called too few times to be worth a compilation",
    Reason.INITIALIZATION: "the graph initializes variables and runs once",
    Reason.KERNEL_RANDOM_STATE: "TensorFlow's kernel keeps a random state of its own",
    Reason.DEVICE_BOUNDARY: "a tensor crosses devices there",
    Reason.COLLECTIVE: "it takes part in a collective, which may not be postponed",
    Reason.SWAP_GROUP: "replicas that meet in collectives did not agree to swap together",
    Reason.REGION_TOO_SMALL: "nothing else can run with it: one operation alone gains nothing",
    Reason.UNKNOWN_RANK: "the number of dimensions of a tensor is not known",
    Reason.LOWERING_FAILED: "TensorFlow's importer could not lower it to HLO",
    Reason.ELIDED_CONSTANT: "a constant's values were left out of the lowered text",
    Reason.PARSE_ERROR: "its text could not be read",
    Reason.DOES_NOT_UNIFY: "it becomes another program at another batch size",
    Reason.UNKNOWN_OPCODE: "it lowers to an HLO opcode without a record",
    Reason.UNSUPPORTED_TYPE: "no kernel handles its element type",
    Reason.UNSUPPORTED_LAYOUT: "its memory layout is not row-major",
    Reason.LIBRARY_CALL: "it is a matrix product, convolution or pooling: a library does it best",
    Reason.CONTROL_FLOW: "it is control flow: kernels stand between, not around it",
    Reason.UNSUPPORTED_OPCODE: "no kernel can hold what it lowers to",
    Reason.CYCLE: "one would have to wait for what waits for it",
    Reason.NOT_PROFITABLE: "one kernel is not estimated to be faster",
    Reason.TOO_MANY_BUFFERS: "one kernel would read and write too many tensors",
    Reason.MEMORY: "a step would hold more memory than it did",
    Reason.STEP_LIMIT: "the compiler gave up after a fixed number of steps",
    Reason.NO_COMPILER: "there is no compiler for it: see `stitch doctor`",
    Reason.NO_DEVICE: "there is no device of this kind here",
    Reason.COMPILE_FAILED: "its generated source did not compile",
    Reason.SHARED_MEMORY: "a block of its kernel needs more shared memory than the GPU has",
    Reason.REGISTERS: "its kernel does not fit the GPU's registers without spilling them to memory",
    Reason.WRONG_RESULT: "its kernels' results failed the check against TensorFlow and float64",
    Reason.SLOWER: "measured, its kernels were slower than TensorFlow",
    Reason.NO_ARTIFACT: "nothing was built for this graph yet",
    Reason.DEADLINE: "building took longer than allowed (STITCH_WORKER_SECONDS)",
    Reason.WORKER_FAILED: "the worker ended without an answer",
    Reason.STORE_UNREADABLE: "the store could not be read or written",
    Reason.BAD_SIGNATURE: "the artifact is not signed by the key that this job trusts",
    Reason.BAD_ARTIFACT: "the artifact is damaged or of another kind",
    Reason.WRONG_TARGET: "it is for another processor, or one that the compiler does not know",
    Reason.GUARD_FAILED: "a shape was not what the kernels were built for",
    Reason.CRASHED_BEFORE: "a run with this artifact crashed before",
    Reason.KERNEL_FAILED: "a stitched operation reported an error in the step",
    Reason.XLA_NOT_LIFTED: "the step runs under XLA and could not be taken out of it",
    Reason.NO_TENSORFLOW: "there is no TensorFlow",
    Reason.UNSUPPORTED_VERSION: "this TensorFlow version is not supported",
    Reason.HOOK_ERROR: "something unexpected happened in the job's hook",
    Reason.NO_WORKER_FOR_TARGET: "no worker serves this processor or GPU and TensorFlow version",
    Reason.GRAPH_TOO_LARGE: "the graph is beyond the limits for graphs of strangers",
    Reason.DIGEST_MISMATCH: "what was asked for is not what its key says",
    Reason.QUARANTINED: "building it ended the compiler's process twice",
    Reason.LEASE_LOST: "another worker took over while this one was building",
    Reason.GATEWAY_UNREACHABLE: "the gateway gave no whole answer within its deadline",
    Reason.GATEWAY_UNTRUSTED: "the gateway's certificate is another's, or not signed by STITCH_CA",
    Reason.GATEWAY_DENIED: "there is no token for the gateway, or it does not take it",
    Reason.GATEWAY_ERROR: "the gateway answered with what its contract does not know",
    Reason.REVOKED: "the artifact was taken back",
    Reason.CACHE_FULL: "the artifact does not fit into the job's cache (STITCH_CACHE_LIMIT)",
    Reason.UNMEASURED: "too few blocks of steps were timed to claim anything",
    Reason.STRUCTURE: "the graph with it is one that TensorFlow would not run as it ran before",
    Reason.IMPLAUSIBLE: "the gateway does not believe the report, and did not count it",
}
"""One sentence each, after "because"."""


def meaning(value: str) -> str:
    """The sentence for a reason's value; "" for what is no reason."""
    known = next((reason for reason in Reason if reason.value == value), None)
    return MEANINGS.get(known, "") if known is not None else ""
