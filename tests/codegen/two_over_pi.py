"""Writes codegen/include/stitch_two_over_pi.h: for each float exponent, 96 bits of 2/pi.

For x = m * 2^(e - 150) the product x * 2/pi modulo 4 needs the bits of 2/pi of weight below
2^(152 - e): floor(2/pi * 2^(e - 150 + 62 + 32)) modulo 2^96, split into a high and a low part.
"""

from __future__ import annotations


def _pi(bits: int) -> int:
    """floor(pi * 2^bits), by Machin's formula with 64 guard bits."""
    one = 1 << (bits + 64)

    def arctan_inverse(n: int) -> int:
        total = term = one // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    return (4 * (4 * arctan_inverse(5) - arctan_inverse(239))) >> 64


def header() -> str:
    """The whole header file."""
    bits = 400
    two_over_pi = (2 << (2 * bits)) // _pi(bits)  # floor(2/pi * 2^bits)
    high: list[str] = []
    low: list[str] = []
    for exponent in range(256):
        shift = exponent - 150 + 62 + 32
        value = two_over_pi >> (bits - shift) if shift <= bits else 0
        value %= 1 << 96
        high.append(f"0x{value >> 32:016x}u")
        low.append(f"0x{value & 0xFFFFFFFF:08x}u")
    lines = ["/* Written by tests/codegen/two_over_pi.py: bits of 2/pi by float exponent. */"]
    for name, kind, values, width in (("high", "uint64_t", high, 4), ("low", "uint64_t", low, 8)):
        lines.append(f"ST_TABLE {kind} st_two_over_pi_{name}[256] = {{")
        for start in range(0, 256, width):
            lines.append("  " + ", ".join(values[start : start + width]) + ",")
        lines.append("};")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(header(), end="")
