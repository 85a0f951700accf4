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
    Reason.FED_TENSOR: "the session is fed a tensor that the graph computes",
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
    Reason.LIBRARY_CALL: "it is a matrix product, convolution or the like: a library does it best",
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
    Reason.COMMAND_FAILED: "the command ended, by an error or a signal, before a step was seen",
    Reason.NOT_IMPORTED: "what was started has not imported TensorFlow",
    Reason.EAGER: (
        "no graph of a step came to TensorFlow's optimizers: it ran operations one by one, or "
        "could not write the graph down (its log says `function optimization failure`)"
    ),
    Reason.CHILD_PROCESS: "TensorFlow runs in a child process that a Python program started",
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
    Reason.UNMEASURED: "its steps were timed too seldom, or cannot be timed, to claim anything",
    Reason.STRUCTURE: "the graph with it is one that TensorFlow would not run as it ran before",
    Reason.IMPLAUSIBLE: "the gateway does not believe the report, and did not count it",
}
"""One sentence each, after "because"."""


MENDS: Mapping[Reason, str] = {
    Reason.NOT_ALLOWED_OPERATION: (
        "nothing; or say which one, with its type: the list grows by what jobs use"
    ),
    Reason.STATEFUL_RANDOM: "use tf.random.stateless_* or Keras dropout with a seed generator",
    Reason.RANDOM_STREAM: "use tf.random.stateless_* or Keras dropout with a seed generator",
    Reason.DATA_DEPENDENT_ERROR: "nothing: the check stays TensorFlow's, so that its error does",
    Reason.REF_VARIABLE: "tf.compat.v1.enable_resource_variables() before the graph is built",
    Reason.SPARSE_VARIABLE: "nothing: rows that are not touched are not read either",
    Reason.UNORDERED_VARIABLE: "build the step in a tf.function, which orders reads and writes",
    Reason.INPUT_PIPELINE: "nothing: it runs beside the step; tf.data's own options make it faster",
    Reason.FED_TENSOR: "feed placeholders, and nothing that is computed from them",
    Reason.FEW_CALLS: "nothing for a short run: a step is worth it that is called again and again",
    Reason.INITIALIZATION: "nothing: it runs once",
    Reason.KERNEL_RANDOM_STATE: (
        "`stitch run --wait`: such a step is swapped before its first call only"
    ),
    Reason.DEVICE_BOUNDARY: "keep what belongs together on one device",
    Reason.COLLECTIVE: "run replicas with a gateway (docs/service.md): they swap together",
    Reason.SWAP_GROUP: "look at the other replicas' lines; all of them must have the same artifact",
    Reason.REGION_TOO_SMALL: "nothing: there is nothing that it could be stitched to",
    Reason.UNKNOWN_RANK: "give tf.function an input_signature, or tensors a set_shape",
    Reason.LOWERING_FAILED: "nothing; the detail names what the importer says",
    Reason.ELIDED_CONSTANT: "print the module with large constants (XLA: print_large_constants)",
    Reason.PARSE_ERROR: "check that the file is complete HLO text (`HloModule ...`)",
    Reason.DOES_NOT_UNIFY: "keep the batch size the same, the last one too (drop_remainder=True)",
    Reason.UNKNOWN_OPCODE: "report the opcode; it has no record in stitchcore/hlo/ir/opcodes.py",
    Reason.UNSUPPORTED_TYPE: (
        "nothing, unless the type can be float32, float64, bfloat16 or an integer"
    ),
    Reason.UNSUPPORTED_LAYOUT: "lower the module with row-major layouts",
    Reason.LIBRARY_CALL: "nothing: TensorFlow's library (oneDNN, cuBLAS, cuDNN) keeps it",
    Reason.CONTROL_FLOW: "nothing: what is within its bodies is stitched there",
    Reason.UNSUPPORTED_OPCODE: "nothing; the detail names it",
    Reason.CYCLE: "`stitch explain A B` names what stands between two operations",
    Reason.NOT_PROFITABLE: "nothing: it would save nothing",
    Reason.TOO_MANY_BUFFERS: "nothing: the region is cut elsewhere",
    Reason.MEMORY: "a smaller batch leaves room; the detail says how much was held",
    Reason.STEP_LIMIT: "nothing; report the program if its step matters",
    Reason.NO_COMPILER: "apt-get install gcc, or pip install ziglang",
    Reason.NO_DEVICE: "run this on a machine with the device, or compile for it only",
    Reason.COMPILE_FAILED: "report it with the worker's log in the session's folder",
    Reason.SHARED_MEMORY: "nothing: the region is left to TensorFlow",
    Reason.REGISTERS: "nothing: the region is left to TensorFlow",
    Reason.WRONG_RESULT: "report it, it is a fault of ours; the step is right without it",
    Reason.SLOWER: "nothing: the step runs as it did before",
    Reason.NO_ARTIFACT: (
        "`stitch run --wait` holds the first step back; `--finish` compiles on after the end"
    ),
    Reason.DEADLINE: "give more with STITCH_WORKER_SECONDS",
    Reason.WORKER_FAILED: "see the worker's log in the session's folder; `stitch doctor`",
    Reason.STORE_UNREADABLE: "check the folder's permissions and space, or pass --store",
    Reason.BAD_SIGNATURE: "`stitch run --fresh` builds it anew with your key (STITCH_KEY)",
    Reason.BAD_ARTIFACT: "`stitch run --fresh` builds it anew",
    Reason.WRONG_TARGET: "`stitch run --fresh` builds it for this machine",
    Reason.GUARD_FAILED: "keep the shapes of a step the same (drop_remainder=True)",
    Reason.CRASHED_BEFORE: "`stitch run --fresh` tries again; report it if it happens again",
    Reason.KERNEL_FAILED: "report it with the detail; the step goes on in TensorFlow",
    Reason.XLA_NOT_LIFTED: "leave out jit_compile=True (TF_XLA_FLAGS) to have the step stitched",
    Reason.NO_TENSORFLOW: "pip install 'stitchcore[tensorflow]' in the environment of the job",
    Reason.COMMAND_FAILED: (
        "nothing where you ended it; else see what the command itself has said: without "
        "`stitch run --` it should say the same"
    ),
    Reason.NOT_IMPORTED: (
        "put the command that trains itself after `--`: `stitch run -- python train.py`"
    ),
    Reason.CHILD_PROCESS: (
        "start what trains from a shell, not from Python: `stitch run -- python train.py`, or of "
        "several `stitch run -- sh -c 'python a.py & python b.py; wait'`; in a launcher put "
        "`stitch run --` before the command that it starts"
    ),
    Reason.EAGER: "put @tf.function on the training step; in Keras leave out run_eagerly=True",
    Reason.UNSUPPORTED_VERSION: (
        "`stitch doctor` says which versions work here, and what to install"
    ),
    Reason.HOOK_ERROR: "report it with the detail; the job was left alone",
    Reason.NO_WORKER_FOR_TARGET: ("start a worker of that kind (docs/service.md)"),
    Reason.GRAPH_TOO_LARGE: "nothing, unless the gateway is yours: docs/service.md has its limits",
    Reason.DIGEST_MISMATCH: "update job and gateway to one version",
    Reason.QUARANTINED: "report it with the worker's log",
    Reason.LEASE_LOST: "nothing: the other worker answers",
    Reason.GATEWAY_UNREACHABLE: "check STITCH_GATEWAY and that the gateway runs",
    Reason.GATEWAY_UNTRUSTED: "set STITCH_CA to the authority of the gateway's certificate",
    Reason.GATEWAY_DENIED: "check the token in STITCH_TOKEN_FILE",
    Reason.GATEWAY_ERROR: "update job and gateway to one version",
    Reason.REVOKED: "nothing: who revoked it says why",
    Reason.CACHE_FULL: "raise STITCH_CACHE_LIMIT, or empty the job's cache",
    Reason.UNMEASURED: (
        "let it run for more steps; call a step that tf.data calls from Python, batch by batch; "
        "STITCH_ALLOW_UNMEASURED=1 where nobody can measure"
    ),
    Reason.STRUCTURE: "report it with the detail; the rest of the step is stitched",
    Reason.IMPLAUSIBLE: "nothing: the job goes on, and what it reported is not counted",
}
"""What can be done about each; where nothing can or need be done, it says so."""

PAGE = "docs/reasons.md"
"""Where both stand, with the reason's value as the anchor."""


def meaning(value: str) -> str:
    """The sentence for a reason's value; "" for what is no reason."""
    known = _known(value)
    return MEANINGS[known] if known is not None else ""


def mend(value: str) -> str:
    """What can be done about a reason's value; "" for what is no reason."""
    known = _known(value)
    return MENDS[known] if known is not None else ""


def _known(value: str) -> Reason | None:
    return next((reason for reason in Reason if reason.value == value), None)
