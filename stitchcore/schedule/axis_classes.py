"""Atoms of dimensions: a union-find whose classes can be split into factors and kept apart.

An atom is a loop that may run over a dimension or a factor of one. Unifying two rows of atoms
refines both until they agree; two atoms of one value are never made equal (`apart`), because a
value's axes are distinct loops.
"""

from __future__ import annotations

from collections.abc import Iterable

from stitchcore.hlo.ir.dim import Dim, exact_divide


class Atoms:
    """Mutable while one pattern is analysed; nearly linear in the number of atoms."""

    def __init__(self) -> None:
        self.extents: list[Dim] = []
        self._parents: list[int] = []
        self._factors: list[tuple[int, int] | None] = []
        self._apart: list[set[int]] = []

    def new(self, extent: Dim) -> int:
        self.extents.append(extent)
        self._parents.append(len(self._parents))
        self._factors.append(None)
        self._apart.append(set())
        return len(self._parents) - 1

    def leaves(self, atom: int) -> tuple[int, ...]:
        """The unsplit classes that `atom` stands for, outermost first."""
        root = self._find(atom)
        factors = self._factors[root]
        if factors is None:
            return (root,)
        return self.leaves(factors[0]) + self.leaves(factors[1])

    def all_leaves(self, atoms: Iterable[int]) -> tuple[int, ...]:
        return tuple(leaf for atom in atoms for leaf in self.leaves(atom))

    def keep_apart(self, atoms: Iterable[int]) -> None:
        """The atoms are axes of one value: no two may ever become one."""
        leaves = self.all_leaves(atoms)
        for leaf in leaves:
            self._apart[leaf].update(other for other in leaves if other != leaf)

    def unify(self, left: Iterable[int], right: Iterable[int]) -> bool:
        """Make two rows of atoms of equal product one; False where they cannot be refined."""
        ours, theirs = list(left)[::-1], list(right)[::-1]
        while ours and theirs:
            if self._expand(ours) or self._expand(theirs):
                continue
            a, b = self._find(ours.pop()), self._find(theirs.pop())
            if a == b:
                continue
            if self.extents[a] == self.extents[b]:
                if not self._merge(a, b):
                    return False
            elif (rest := exact_divide(self.extents[a], self.extents[b])) is not None:
                self._split(a, self.extents[b], rest)
                ours.append(a)
                theirs.append(b)
            elif (rest := exact_divide(self.extents[b], self.extents[a])) is not None:
                self._split(b, self.extents[a], rest)
                ours.append(a)
                theirs.append(b)
            else:
                return False
        return not ours and not theirs

    def _find(self, atom: int) -> int:
        while self._parents[atom] != atom:
            self._parents[atom] = self._parents[self._parents[atom]]
            atom = self._parents[atom]
        return atom

    def _expand(self, stack: list[int]) -> bool:
        leaves = self.leaves(stack[-1])
        if len(leaves) == 1:
            return False
        stack[-1:] = leaves[::-1]
        return True

    def _merge(self, a: int, b: int) -> bool:
        if len(self._apart[a]) < len(self._apart[b]):
            a, b = b, a
        if any(a in self.leaves(other) for other in self._apart[b]):
            return False
        if any(b in self.leaves(other) for other in self._apart[a] & {b}):
            return False
        self._parents[b] = a
        self._apart[a] |= self._apart[b]
        return True

    def _split(self, atom: int, outer: Dim, inner: Dim) -> None:
        first, second = self.new(outer), self.new(inner)
        for part, other in ((first, second), (second, first)):
            self._apart[part] = set(self._apart[atom]) | {other}
        self._factors[atom] = (first, second)
