"""Instructions of kernels in a cubin, by class: what the cost model's counts are held against.

A cubin is an ELF file with one `.text.NAME` section a kernel. From Volta on an instruction takes 16
bytes, and its lowest nine bits are the operation whatever its operands are (Jia et al. 2018, arXiv
1804.06826, section 2, has the encoding); tests compile kernels whose instructions are known.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping

INSTRUCTION_BYTES = 16
OPERATION_BITS = 0x1FF
NO_DATA = 8
"""ELF's SHT_NOBITS: a section that takes no place in the file."""

EXIT, CALL, LOAD = 0x14D, 0x144, 0x181
APART = frozenset({0x147, 0x11D, EXIT})
"""BRA, BAR, EXIT."""
PADDING = frozenset({0x118})
"""NOP: the compiler fills sections with them."""

OPERATIONS: Mapping[str, frozenset[int]] = {
    "float32": frozenset({0x20, 0x21, 0x23}),  # FMUL, FADD, FFMA
    "float64": frozenset({0x28, 0x29, 0x2A, 0x2B}),  # DMUL, DADD, DSETP, DFMA
    # MUFU; F2F, F2I, I2F, FRND, and those of 64 bits
    "special": frozenset({0x108, 0x104, 0x105, 0x106, 0x107, 0x110, 0x111, 0x112, 0x113}),
    "shuffle": frozenset({0x189}),  # SHFL
    "shared": frozenset({0x184, 0x188}),  # LDS, STS
    "barrier": frozenset({0x11D}),  # BAR
    "memory": frozenset({0x181, 0x186}),  # LDG, STG
}
"""Operations by class; all others are integer instructions, moves, comparisons and branches."""


def operations(cubin: bytes, ordinary: bool = False) -> dict[str, Counter[int]]:
    """How often each operation stands in each kernel. `ordinary`: up to the first EXIT, behind
    which lie the subroutines of rare cases, and without the calls of these."""
    found = {}
    for name, data in _sections(cubin):
        if name.startswith(".text."):
            codes = _ordinary(_codes(data)) if ordinary else _codes(data)
            found[name.removeprefix(".text.")] = Counter(c for c in codes if c not in PADDING)
    return found


def loads_together(cubin: bytes) -> dict[str, int]:
    """Of each kernel, the most loads of memory with no branch or barrier between them: what a lane
    has under way at once, if the first result is not wanted sooner."""
    found = {}
    for name, data in _sections(cubin):
        if name.startswith(".text."):
            most = now = 0
            for code in _codes(data):
                now = 0 if code in APART else now + (code == LOAD)
                most = max(most, now)
            found[name.removeprefix(".text.")] = most
    return found


def by_class(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts of operations, added up by class."""
    known = {code: name for name, codes in OPERATIONS.items() for code in codes}
    found = dict.fromkeys((*OPERATIONS, "integer"), 0)
    for code, count in counts.items():
        found[known.get(code, "integer")] += count
    return found


def _codes(data: bytes) -> Iterator[int]:
    for position in range(0, len(data) - INSTRUCTION_BYTES + 1, INSTRUCTION_BYTES):
        yield int.from_bytes(data[position : position + 2], "little") & OPERATION_BITS


def _ordinary(codes: Iterator[int]) -> Iterator[int]:
    for code in codes:
        if code == EXIT:
            return
        if code != CALL:
            yield code


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an ELF64 file's sections."""
    start = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + size * n) for n in range(count)]
    table = headers[names][4]
    for name, kind, _, _, offset, length in headers:
        begin = table + name
        text = elf[begin : elf.index(b"\0", begin)].decode()
        yield text, b"" if kind == NO_DATA else elf[offset : offset + length]
