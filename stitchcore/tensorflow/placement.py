"""Where TensorFlow keeps nodes and tensors of a graph: what kernels of one kind of device may take.

On a GPU some tensors are in host memory: handles, and int32 wherever an operation's kernel says so,
which is nearly everywhere (TensorFlow: core/framework/memory_types.cc; a kernel's registration
names its `HostMemory` arguments). A kernel on the GPU that took such an operation over would have
its data copied to the device and back in every step, so it stays as it is. Read in the source; that
no results of what is taken lie in host memory was seen on a GPU (test_gpu_conformance.py).
"""

from __future__ import annotations

from stitchcore.tensorflow import op_allowlist
from stitchcore.tensorflow.graph import Edge, GraphIndex

CPU, GPU = "cpu", "gpu"
KINDS = (CPU, GPU)

INT32_ON_DEVICE = frozenset({"Cast", "OneHot", "SparseSoftmaxCrossEntropyWithLogits"})
"""Operations whose GPU kernels keep int32 data in device memory: core/kernels/cast_op.cc
(REGISTER_CAST_GPU), one_hot_op.cc (only `depth` is HostMemory), sparse_xent_op.cc (REGISTER)."""


def is_on(device: str, kind: str) -> bool:
    """Whether a node's device is of `kind`. No device is TensorFlow's default where there is no
    GPU, and nothing that may be taken for a GPU."""
    if kind == CPU:
        return not device or "CPU" in device.upper()
    return "GPU:" in device.upper()


def in_host_memory(graph: GraphIndex, tensor: Edge) -> bool:
    """Whether an output of a node that may be on a GPU is in host memory."""
    node = graph.nodes[tensor.node]
    if not is_on(node.device, GPU) or graph.dtype(tensor) == "resource":
        return True
    return graph.dtype(tensor) == "int32" and node.op not in INT32_ON_DEVICE


def keeps_data_on_host(graph: GraphIndex, i: int) -> bool:
    """Whether the kernel of node i on a GPU reads or writes data in host memory. Operands that only
    decide shapes are always there; they are copied into regions as constants."""
    node, data = graph.nodes[i], graph.data[i]
    if node.op in INT32_ON_DEVICE:
        return False
    shapes = {
        position % len(data) for position in op_allowlist.SHAPE_OPERANDS.get(node.op, ()) if data
    }
    read = [graph.dtype(tensor) for n, tensor in enumerate(data) if n not in shapes]
    return "int32" in (*read, *graph.output_types[i])
