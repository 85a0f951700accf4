"""What the job side and the compiler must agree on: changed here, it changes on both.

The formats themselves are docs/contracts.md 2 to 5. Strings and numbers only, for Python 3.9: the
job side imports nothing of the rest of stitchcore, and the rest takes these names from here.
"""

from __future__ import annotations

import re

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
MANIFEST_FORMAT = 3  # since 3 regions may be undecided: who compares none on a job's data refuses
KERNEL_ABI = 1
MAXIMUM_ARTIFACT_BYTES = 512 * 2**20
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # of an artifact's file, matched whole

FUSION, UPDATE = "StitchedFusion", "StitchedUpdate"  # the latter where it has a variable's handle
FUSIONS = frozenset({FUSION, UPDATE})
# The only operations that a patch may add to a job's graph. The job makes an UPDATE of a FUSION.
PATCH_OPERATIONS = frozenset(
    {
        FUSION,
        "Const",
        "Identity",
        "NoOp",
        "AssignVariableOp",
        "ReadVariableOp",
        "Reshape",
        "Cast",
        "GatherV2",
        "UnsortedSegmentSum",
        "StridedSlice",
    }
)
