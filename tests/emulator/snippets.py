"""Small kernels with one fault each, or with none, for what generated kernels do not reach.

Each is given `data` and the read-only `given` of SIZE floats, `word` of two zeros, and `fresh` of
SIZE floats that are not written yet. `// here` marks the line at fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulator.findings import Kind
from tests.emulator.launch import Grid

SIZE = 256
BLOCK = Grid((1, 1, 1), (64, 1, 1), 1024)
BLOCKS = Grid((3, 1, 1), (64, 1, 1), 1024)
TOGETHER = Grid((3, 1, 1), (64, 1, 1), 1024, cooperative=True)

SIGNATURE = "(float *data, const float *given, unsigned *word, float *fresh)"
HEAD = "const int i = threadIdx.x; extern __shared__ __align__(16) float shared[];"


@dataclass(frozen=True)
class Snippet:
    """`kind` is what must be found, None where nothing may be."""

    name: str
    kind: Kind | None
    body: str
    grid: Grid = BLOCK

    @property
    def text(self) -> str:
        return f'extern "C" __global__ void {self.name}{SIGNATURE} {{\n{HEAD}\n{self.body}\n}}\n'

    @property
    def line(self) -> int:
        """The line that is marked, of this snippet alone."""
        lines = [n for n, line in enumerate(self.text.splitlines(), 1) if "// here" in line]
        return lines[0] if lines else 0


FAULTS = (
    Snippet("no_barrier", Kind.RACE, "shared[i] = i;\ndata[i] = shared[63 - i];  // here"),
    Snippet("same_element", Kind.RACE, "data[0] = i;  // here"),
    Snippet("across_blocks", Kind.RACE, "data[i] = 1.0f;  // here", BLOCKS),
    Snippet(
        "warp_without_sync",
        Kind.RACE,
        "shared[i] = i;\nfloat x = shared[i ^ 1];  // here\n__syncthreads();\ndata[i] = x;",
    ),
    Snippet(
        "shuffles_order_nothing",
        Kind.RACE,
        "shared[i] = i;\nint x = __shfl_xor_sync(0xffffffffu, i, 1);\n"
        "data[i] = shared[x];  // here",
    ),
    Snippet("plain_update", Kind.RACE, "(*word)++;  // here"),
    Snippet("plain_read", Kind.RACE, "atomicAdd(word, 1u);\ndata[i] = *word;  // here"),
    Snippet(
        "flag_without_fence",
        Kind.RACE,
        "if (blockIdx.x == 0 && i == 0) {\n  data[0] = 1.0f;\n  atomicExch(word, 1u);\n}\n"
        "if (blockIdx.x == 1 && i == 0) {\n  while (*(volatile unsigned *)word == 0) "
        "__nanosleep(8);\n  __threadfence();\n  data[1] = data[0];  // here\n}",
        TOGETHER,
    ),
    Snippet(
        "flag_read_without_fence",
        Kind.RACE,
        "if (blockIdx.x == 0 && i == 0) {\n  data[0] = 1.0f;\n  __threadfence();\n"
        "  atomicExch(word, 1u);\n}\nif (blockIdx.x == 1 && i == 0) {\n"
        "  while (*(volatile unsigned *)word == 0) __nanosleep(8);\n"
        "  data[1] = data[0];  // here\n}",
        TOGETHER,
    ),
    Snippet(
        "fence_of_one_block",
        Kind.RACE,
        "if (blockIdx.x == 0 && i == 0) {\n  data[0] = 1.0f;\n  __threadfence_block();\n"
        "  atomicExch(word, 1u);\n}\nif (blockIdx.x == 1 && i == 0) {\n"
        "  while (*(volatile unsigned *)word == 0) __nanosleep(8);\n  __threadfence();\n"
        "  data[1] = data[0];  // here\n}",
        TOGETHER,
    ),
    Snippet(
        "bytes_of_one_word",
        Kind.RACE,
        "unsigned char *bytes = (unsigned char *)shared;\nbytes[i / 2] = 1;  // here",
    ),
    Snippet("unwritten", Kind.UNINITIALISED, "data[i] = shared[i];  // here"),
    Snippet("unwritten_output", Kind.UNINITIALISED, "data[i] = fresh[i];  // here"),
    Snippet(
        "unwritten_static",
        Kind.UNINITIALISED,
        "__shared__ float part[32];\nif (i == 0) part[1] = 1.0f;\n__syncthreads();\n"
        "if (i < 2) data[i] = part[i];  // here",
    ),
    Snippet("past_the_end", Kind.OUT_OF_BOUNDS, "data[i + 193] = 1.0f;  // here"),
    Snippet("before_the_begin", Kind.OUT_OF_BOUNDS, "data[i - 1] = 1.0f;  // here"),
    Snippet("half_past_the_end", Kind.OUT_OF_BOUNDS, "memcpy(data + 192 + i, given, 8);  // here"),
    Snippet("far_away", Kind.OUT_OF_BOUNDS, "data[(long)i << 40] = 1.0f;  // here"),
    Snippet("past_shared", Kind.OUT_OF_BOUNDS, "shared[i + 193] = 1.0f;  // here"),
    Snippet(
        "past_static",
        Kind.OUT_OF_BOUNDS,
        "__shared__ float part[32], next[32];\nnext[i % 32] = part[i] = 1.0f;  // here",
    ),
    Snippet("null", Kind.OUT_OF_BOUNDS, "*(float *)(long)(data == nullptr) = 1.0f;  // here"),
    Snippet(
        "vector_off_by_one",
        Kind.MISALIGNED,
        "float4 v = *(const float4 *)(given + i + 1);  // here\ndata[i] = v.x;",
    ),
    Snippet(
        "vector_store_off",
        Kind.MISALIGNED,
        "*(float2 *)(data + 2 * i + 1) = {1.0f, 2.0f};  // here",
    ),
    Snippet("input_written", Kind.READ_ONLY, "((float *)given)[i] = 1.0f;  // here"),
    Snippet(
        "texture_path", Kind.NOT_COHERENT, "data[i] = 1.0f;\nfresh[i] = __ldg(data + i);  // here"
    ),
    Snippet(
        "barriers_of_two_branches",
        Kind.DIVERGENT_BARRIER,
        "if (i < 32) {\n  __syncthreads();\n} else {\n  shared[i] = 1.0f;\n  __syncthreads();\n}",
    ),
    Snippet("barrier_of_some", Kind.EXITED, "if (i < 40) __syncthreads();  // here"),
    Snippet("early_exit", Kind.EXITED, "if (i == 3) return;\n__syncthreads();  // here"),
    Snippet(
        "not_in_its_mask",
        Kind.WRONG_MASK,
        "data[i] = __shfl_sync(0xfffffffeu, i, 2);  // here",
    ),
    Snippet(
        "two_masks",
        Kind.WRONG_MASK,
        "data[i] = __shfl_xor_sync(i % 32 < 31 ? 0xffffffffu : 0x80000001u, i, 1);  // here",
    ),
    Snippet(
        "shuffle_of_a_branch",
        Kind.DIVERGENT_WARP,
        "int x;\nif (i % 2) {\n  x = __shfl_xor_sync(0xffffffffu, i, 1);\n} else {\n"
        "  data[i] = 0.0f;\n  x = __shfl_xor_sync(0xffffffffu, i + 1, 1);\n}\ndata[i] = x;",
    ),
    Snippet(
        "vote_meets_shuffle",
        Kind.DIVERGENT_WARP,
        "data[i] = i % 2 ? __shfl_xor_sync(0xffffffffu, i, 1) : __any_sync(0xffffffffu, i);",
    ),
    Snippet(
        "absent_lane",
        Kind.ABSENT_LANE,
        "if (i < 16) data[i] = __shfl_down_sync(0x0000ffffu, i, 8);  // here",
    ),
    Snippet(
        "warp_waits_for_ever",
        Kind.DEADLOCK,
        "if (i < 32) {\n  if (i != 5) __syncwarp();  // here\n  __syncthreads();\n} else {\n"
        "  __syncthreads();\n}",
    ),
    Snippet(
        "nobody_signals", Kind.DEADLOCK, "while (*(volatile unsigned *)word == 0) __nanosleep(8);"
    ),
    Snippet(
        "lock_is_kept", Kind.DEADLOCK, "while (atomicCAS(word, 0u, 1u) != 0) {}\ndata[0] = 1.0f;"
    ),
    Snippet(
        "blocks_run_one_by_one",
        Kind.DEADLOCK,
        "if (i == 0) {\n  atomicAdd(word, 1u);\n"
        "  while (*(volatile unsigned *)word < gridDim.x) __nanosleep(8);\n}",
        BLOCKS,
    ),
    Snippet("trap", Kind.TRAP, "if (given[i] >= 0.0f) __trap();  // here"),
)
"""Kernels with the fault that is named."""

CLEAN = (
    Snippet("barrier", None, "shared[i] = i;\n__syncthreads();\ndata[i] = shared[63 - i];"),
    Snippet("warp_sync", None, "shared[i] = i;\n__syncwarp();\ndata[i] = shared[i ^ 1];"),
    Snippet(
        "half_warps",
        None,
        "unsigned mask = i % 32 < 16 ? 0xffffu : 0xffff0000u;\nshared[i] = i;\n__syncwarp(mask);\n"
        "data[i] = shared[i ^ 3] + __shfl_xor_sync(mask, i, 3);",
    ),
    Snippet(
        "sub_word_neighbours",
        None,
        "unsigned short *halves = (unsigned short *)shared;\n"
        "halves[i] = i;\n__syncthreads();\ndata[i] = halves[i ^ 1];",
    ),
    Snippet("blocks", None, "data[blockIdx.x * blockDim.x + i] = given[i];", BLOCKS),
    Snippet("atomics", None, "atomicAdd(word, 1u);\natomicMax(word + 1, (unsigned)i);", BLOCKS),
    Snippet("atomic_then_read", None, "atomicAdd(word, 1u);\n__syncthreads();\ndata[i] = *word;"),
    Snippet(
        "flag",
        None,
        "if (blockIdx.x == 0 && i == 0) {\n  data[0] = 1.0f;\n  __threadfence();\n"
        "  atomicExch(word, 1u);\n}\nif (blockIdx.x == 1 && i == 0) {\n"
        "  while (*(volatile unsigned *)word == 0) __nanosleep(8);\n  __threadfence();\n"
        "  data[1] = data[0];\n}",
        TOGETHER,
    ),
    Snippet(
        "volatile_flag_of_a_block",
        None,
        "volatile unsigned *flag = (volatile unsigned *)shared;\nif (i == 0) *flag = 0;\n"
        "__syncthreads();\nif (i == 40) {\n  shared[8] = 5.0f;\n  __threadfence_block();\n"
        "  *flag = 1;\n}\nif (i == 0) {\n  while (*flag == 0) {}\n  __threadfence_block();\n"
        "  data[0] = shared[8];\n}",
    ),
    Snippet(
        "last_block_adds_up",
        None,
        "__shared__ bool last;\nif (i == 0) {\n  fresh[blockIdx.x] = blockIdx.x;\n"
        "  __threadfence();\n  last = atomicAdd(word, 1u) == gridDim.x - 1;\n"
        "  __threadfence();\n}\n__syncthreads();\nif (last && i < 3) data[i] = fresh[i];",
        BLOCKS,
    ),
    Snippet(
        "spin_lock",
        None,
        "if (i == 0) {\n  while (atomicCAS(word, 0u, 1u) != 0) {}\n  __threadfence();\n"
        "  data[0] = data[0] + 1.0f;\n  __threadfence();\n  atomicExch(word, 0u);\n}",
        TOGETHER,
    ),
    Snippet(
        "vectors",
        None,
        "*(float4 *)(shared + 4 * i) = ((const float4 *)given)[i];\n__syncthreads();\n"
        "((float4 *)data)[i] = ((float4 *)shared)[63 - i];",
    ),
    Snippet(
        "copies",
        None,
        "memcpy(data + 4 * i, given + 4 * i, 16);\nif (i == 0) memcpy(fresh, given, 1024);\n"
        "if (i == 1) memset(word, 0, 8);",
    ),
    Snippet(
        "votes",
        None,
        "data[i] = __ballot_sync(0xffffffffu, i & 1) == 0xaaaaaaaau;\n"
        "data[64 + i] = __any_sync(0xffffffffu, i % 32 == 3) && !__all_sync(0xffffffffu, i & 1);",
    ),
    Snippet(
        "lanes_that_ended",
        None,
        "if (i % 32 >= 16) return;\ndata[i] = __shfl_down_sync(0xffffu, i, 4, 8);",
    ),
    Snippet(
        "hints", None, "__stcs(data + i, __ldcs(given + i) + __ldg(given + i) + __ldcg(data + i));"
    ),
    Snippet(
        "same_place_in_turn",
        None,
        "if (i == 0) data[0] = 1.0f;\n__syncthreads();\nif (i == 9) data[0] = 2.0f;",
    ),
)
"""Kernels in which nothing may be found, in any schedule."""
