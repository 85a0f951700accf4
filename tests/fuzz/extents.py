"""Which dimensions of a module must be equal or factor alike: classes of extents.

Each dimension of each value is an extent; constraints unify extents or split them into factors
(a reshape of [4096, 768] to [8, 512, 768] splits 4096). What an opcode ties to a number (a strided
slice, padding, a convolution's image) is pinned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Extents:
    """A union-find over extents whose members may be split into factors, major first."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._factors: dict[int, tuple[int, ...]] = {}
        self._pinned: set[int] = set()

    def new(self, size: int) -> int:
        self._parent.append(len(self._parent))
        self._size.append(size)
        return len(self._parent) - 1

    def find(self, extent: int) -> int:
        while self._parent[extent] != extent:
            self._parent[extent] = self._parent[self._parent[extent]]
            extent = self._parent[extent]
        return extent

    def size(self, extent: int) -> int:
        return self._size[extent]

    def factors(self, extents: Iterable[int]) -> list[int]:
        """The classes that `extents` are products of, major first; those of size 1 are left out."""
        found: list[int] = []
        stack = list(extents)[::-1]
        while stack:
            root = self.find(stack.pop())
            if root in self._factors:
                stack.extend(reversed(self._factors[root]))
            elif self._size[root] != 1:
                found.append(root)
        return found

    def pin(self, extents: Iterable[int]) -> None:
        self._pinned.update(self.factors(extents))

    def pinned(self, extent: int) -> bool:
        return self.find(extent) in self._pinned

    def unify(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Two row-major groups of equal product are one; pins both where they do not factor."""
        ours, theirs = self.factors(left)[::-1], self.factors(right)[::-1]
        while ours and theirs:
            a, b = self.find(ours.pop()), self.find(theirs.pop())
            if a in self._factors or b in self._factors:
                ours.extend(reversed(self.factors([a])))
                theirs.extend(reversed(self.factors([b])))
            elif a == b:
                continue
            elif self._size[a] == self._size[b]:
                self._parent[b] = a
                if b in self._pinned:
                    self._pinned.add(a)
            elif self._size[a] % self._size[b] == 0:
                ours.extend(reversed(self._split(a, self._size[b])))
                theirs.append(b)
            elif self._size[b] % self._size[a] == 0:
                theirs.extend(reversed(self._split(b, self._size[a])))
                ours.append(a)
            else:
                self.pin([a, b, *ours, *theirs])
                return

    def _split(self, extent: int, major: int) -> tuple[int, int]:
        parts = (self.new(major), self.new(self._size[extent] // major))
        self._factors[extent] = parts
        if extent in self._pinned:
            self._pinned.update(parts)
        return parts

    def classes(self) -> list[int]:
        """Every class that is not split."""
        roots = dict.fromkeys(self.find(extent) for extent in range(len(self._parent)))
        return [root for root in roots if root not in self._factors]


def ladder(sizes: Sequence[int], smallest: int, part: int = 0) -> dict[int, int]:
    """A smaller stand-in for each size: order and inequality kept, divisibility by 2 and 4 too.

    Sizes up to `smallest` stand for themselves. With `part` none becomes smaller than that part of
    it, so that large ones stay large beside products of small ones.
    """
    chosen: dict[int, int] = {}
    last = 0
    for size in sorted(set(sizes)):
        if size <= smallest:
            stand_in = size
        else:
            multiple = 4 if size % 4 == 0 else 2 if size % 2 == 0 else 1
            stand_in = max(last + 1, smallest, -(-size // part) if part else 0)
            while stand_in % multiple or (multiple == 1 and stand_in % 2 == 0):
                stand_in += 1
            stand_in = min(stand_in, size)
        chosen[size] = stand_in
        last = stand_in
    return chosen
