"""Named axes: which loops each value of a pattern depends on.

Elementwise operations share their operands' axes, a transpose permutes them, a broadcast adds
dimensions that the value does not vary along, a reduction drops some, a reshape factors them. So
none of these costs anything: a value is a function of a set of axes, and only what lies in memory
has a layout. Where a relation cannot hold (a slice, a reshape that does not refine, x + x^T), the
use is a view: its consumer reads the producer through an explicit index map (views.py).

Afterwards neighbouring axes that always appear together, in the same order in memory, are fused
into one (loop collapsing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.cumulative import scan_of
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.schedule.axis_classes import Atoms

Axis = int
Row = tuple[int, ...]
"""Atoms (later axes) of one dimension, outermost first; empty for a dimension of size 1."""

Dims = tuple[Row | None, ...]
"""One entry a dimension; None where the value does not vary along it."""


@dataclass(frozen=True)
class Axes:
    """The axes of every value of a pattern.

    `dims` gives the axes of each dimension (an axis fused across dimensions stands in the first).
    `views` are (consumer, operand number) pairs read through an index map. `reduced` gives the
    axes a reduction runs over. `constant` are the values that depend on no input. `pieces` gives
    the loops, by dimension, that write one operand of a concatenation into its range.
    """

    extents: Mapping[Axis, Dim]
    dims: Mapping[Instruction, Dims]
    views: frozenset[tuple[Instruction, int]]
    reduced: Mapping[Instruction, tuple[Axis, ...]]
    constant: frozenset[Instruction]
    pieces: Mapping[tuple[Instruction, int], tuple[Row, ...]]

    def of(self, value: Instruction) -> tuple[Axis, ...]:
        """The axes that `value` varies along, in the order of its dimensions."""
        return tuple(axis for row in self.dims[value] if row for axis in row)

    def domain(self, value: Instruction) -> tuple[Axis, ...]:
        """The axes of the loops that compute `value`: a reduction's include the reduced ones."""
        return self.of(value) + self.reduced.get(value, ())


def analyse(pattern: Pattern) -> Axes:
    """The axes of every instruction and input of `pattern`."""
    analysis = _Analysis(frozenset(pattern.outputs))
    for value in pattern.inputs:
        analysis.set(value, analysis.fresh(value.shape.dims))
    for value in pattern.instructions:
        analysis.visit(value)
    return _fused(analysis, pattern)


class _Analysis:
    def __init__(self, outputs: frozenset[Instruction]) -> None:
        self.atoms = Atoms()
        self.outputs = outputs
        self.dims: dict[Instruction, Dims] = {}
        self.views: set[tuple[Instruction, int]] = set()
        self.reduced: dict[Instruction, Row] = {}
        self.constant: set[Instruction] = set()
        self.pieces: dict[tuple[Instruction, int], tuple[Row, ...]] = {}

    def fresh(self, extents: Iterable[Dim]) -> Dims:
        return tuple(() if e == 1 else (self.atoms.new(e),) for e in extents)

    def set(self, value: Instruction, dims: Sequence[Row | None]) -> None:
        if value in self.outputs:
            dims = [
                row if row is not None else self.fresh((extent,))[0]
                for row, extent in zip(dims, value.shape.dims, strict=True)
            ]
        self.dims[value] = tuple(dims)
        self.atoms.keep_apart(atom for row in dims if row for atom in row)

    def visit(self, value: Instruction) -> None:
        if all(operand in self.constant for operand in value.operands):
            self.constant.add(value)
        kind = op.record(value.opcode).kind
        if kind == "reduce":
            self.set(value, self._reduce(value))
            kept = (axis for row in self.dims[value] if row for axis in row)
            self.atoms.keep_apart((*self.reduced[value], *kept))  # axes of an output are new
        elif kind == "constant":
            self.set(value, self._constant(value))
        elif kind in op.POINTWISE:
            self.set(value, self._join(value, range(len(value.operands)), ()))
        else:
            self.set(value, self._movement(value))
            if value.opcode in (op.CONCATENATE, op.REVERSE):
                self._pieces(value)
            elif kind == "scan":
                self.pieces[value, 0] = tuple(row or () for row in self.dims[value])
            elif kind in ("update", "scatter"):
                number = 1 if kind == "update" else 2
                self.pieces[value, 0] = tuple(row or () for row in self.dims[value])
                self.pieces[value, number] = self._window(value.operands[number])

    def _window(self, window: Instruction) -> tuple[Row, ...]:
        """Loops over the elements that an update puts into its place."""
        pairs = zip(self.dims[window], self.fresh(window.shape.dims), strict=True)
        rows = [fresh or () if row is None else row for row, fresh in pairs]
        self.atoms.keep_apart(atom for row in rows for atom in row)
        return tuple(rows)

    def _pieces(self, value: Instruction) -> None:
        """The loops in which each operand writes its elements to their places in `value`."""
        along = value["dimensions"]
        shared = [() if d in along else row or () for d, row in enumerate(self.dims[value])]
        for number, operand in enumerate(value.operands):
            rows = list(shared)
            for d in along:
                used = set(self.atoms.all_leaves(a for row in rows for a in row))
                row = self.dims[operand][d]
                if row is None or used & set(self.atoms.all_leaves(row)):
                    row = self.fresh((operand.shape.dims[d],))[0] or ()
                rows[d] = row
            self.atoms.keep_apart(a for r in rows for a in r)
            self.pieces[value, number] = tuple(rows)

    def _constant(self, value: Instruction) -> list[Row | None]:
        rows: list[Row | None] = [() if e == 1 else None for e in value.shape.dims]
        if value.opcode == op.IOTA:
            k = value["iota_dimension"]
            rows[k] = self.fresh((value.shape.dims[k],))[0]
        elif value.get("value") is not None:
            rows = list(self.fresh(value.shape.dims))
        return rows

    def _join(
        self, value: Instruction, operands: Iterable[int], own: Iterable[int]
    ) -> list[Row | None]:
        """Dimensions of a value that shares its operands' but for those in `own` (left None)."""
        rows: list[Row | None] = [() if e == 1 else None for e in value.shape.dims]
        skipped = frozenset(own)
        order = sorted(operands, key=lambda i: -sum(map(bool, self.dims[value.operands[i]])))
        for i in order:
            operand = value.operands[i]
            if operand.shape.rank != value.shape.rank:
                continue
            apart = operand in self.constant and value not in self.constant
            if not self._adopt(rows, self.dims[operand], value.shape.dims, skipped, apart):
                self.views.add((value, i))
        return rows

    def _adopt(
        self,
        rows: list[Row | None],
        operand_dims: Dims,
        extents: Sequence[Dim],
        skipped: frozenset[int],
        apart: bool,
    ) -> bool:
        holds = True
        for d, row in enumerate(operand_dims):
            if not row or d in skipped:
                continue
            current = rows[d]
            if current is None:
                used = {leaf for r in rows if r for leaf in self.atoms.all_leaves(r)}
                shared = apart or used & set(self.atoms.all_leaves(row))
                rows[d] = self.fresh((extents[d],))[0] if shared else row
                holds = holds and not shared
                self.atoms.keep_apart(atom for r in rows if r for atom in r)
            elif apart or not self.atoms.unify(current, row):
                holds = False
        return holds

    def _reduce(self, value: Instruction) -> list[Row | None]:
        operand = value.operands[0]
        dimensions = frozenset(value["dimensions"])
        rows = list(self.dims[operand])
        over: list[int] = []
        for d in sorted(dimensions):
            row = rows[d]
            extents = (operand.shape.dims[d],)
            over.extend(self.fresh(extents)[0] if row is None else row)  # type: ignore[arg-type]
        self.reduced[value] = tuple(over)
        self.atoms.keep_apart((*over, *(a for row in rows if row for a in row)))
        return [row for d, row in enumerate(rows) if d not in dimensions]

    def _movement(self, value: Instruction) -> list[Row | None]:
        first = self.dims[value.operands[0]]
        match value.opcode:
            case op.BROADCAST:
                rows: list[Row | None] = [() if e == 1 else None for e in value.shape.dims]
                for j, d in enumerate(value["dimensions"]):
                    rows[d] = first[j]
                return rows
            case op.TRANSPOSE:
                return [first[d] for d in value["dimensions"]]
            case op.RESHAPE | op.BITCAST:
                return self._reshape(value, first)
            case op.GATHER:
                self.views.update(((value, 0), (value, 1)))
                return list(self.fresh(value.shape.dims))
            case op.DYNAMIC_UPDATE_SLICE | op.SCATTER:
                self.views.update((value, n) for n in range(1, 2 + (value.opcode == op.SCATTER)))
                return [
                    row if row is not None else self.fresh((extent,))[0]
                    for row, extent in zip(first, value.shape.dims, strict=True)
                ]
            case op.CONCATENATE:
                changed = list(value["dimensions"])
                self.views.update((value, i) for i in range(len(value.operands)))
                rows = self._join(value, range(len(value.operands)), changed)
            case _:
                changed = _changed(value)
                rows = [None if d in changed else row for d, row in enumerate(first)]
                if changed:
                    self.views.add((value, 0))
        for d in changed:
            made_here = value.opcode in (op.CONCATENATE, op.PAD, op.REDUCE_WINDOW)
            if made_here or first[d] is not None:
                rows[d] = self.fresh((value.shape.dims[d],))[0]
        return rows

    def _reshape(self, value: Instruction, operand_dims: Dims) -> list[Row | None]:
        rows: list[Row | None] = [() for _ in value.shape.dims]
        operand = value.operands[0]
        for theirs, ours in segments(operand.shape.dims, value.shape.dims):
            if all(operand_dims[d] is None for d in theirs if operand.shape.dims[d] != 1):
                for d in ours:
                    rows[d] = None if value.shape.dims[d] != 1 else ()
                continue
            source = tuple(
                atom
                for d in theirs
                for atom in (operand_dims[d] or self.fresh((operand.shape.dims[d],))[0] or ())
            )
            for d in ours:
                rows[d] = self.fresh((value.shape.dims[d],))[0]
            if not self.atoms.unify(source, [a for d in ours for a in rows[d] or ()]):
                self.views.add((value, 0))
        return rows


def _changed(value: Instruction) -> list[int]:
    """Dimensions along which a slice (a dynamic one too), pad, reverse or scan reads its operand at
    another index than its own."""
    operand = value.operands[0].shape.dims
    match value.opcode:
        case op.SLICE:
            return [
                d
                for d, (start, limit, step) in enumerate(value["slice"])
                if (start, limit, step) != (0, operand[d], 1)
            ]
        case op.PAD:
            return [d for d, p in enumerate(value["padding"]) if p != (0, 0, 0)]
        case op.DYNAMIC_SLICE:
            return [d for d, size in enumerate(value["dynamic_slice_sizes"]) if size != operand[d]]
        case op.REDUCE_WINDOW:
            return [scan.dim for scan in (scan_of(value),) if scan is not None]
    return [d for d in value["dimensions"] if operand[d] != 1]


def segments(
    left: Sequence[Dim], right: Sequence[Dim]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shortest runs of dimensions of equal product, in order, that make up a reshape."""
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = start_i = start_j = 0
    a: Dim = 1
    b: Dim = 1
    while i < len(left) or j < len(right):
        if (a == b and i > start_i) or j == len(right) or (i < len(left) and _below(a, b)):
            if i == len(left):
                break
            a = a * left[i]
            i += 1
        else:
            b = b * right[j]
            j += 1
        if a == b and a != 1 and i > start_i and j > start_j:
            runs.append((tuple(range(start_i, i)), tuple(range(start_j, j))))
            start_i, start_j, a, b = i, j, 1, 1
    if start_i < len(left) or start_j < len(right):
        runs.append((tuple(range(start_i, len(left))), tuple(range(start_j, len(right)))))
    return runs


def _below(a: Dim, b: Dim) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return _degree(a) < _degree(b)


def _degree(dim: Dim) -> tuple[int, int]:
    if isinstance(dim, int):
        return (0, dim)
    monomial, coefficient = dim.terms[-1]
    return (sum(power for _, power in monomial), coefficient)


# ---- loop collapsing -----------------------------------------------------------------------------
def _fused(analysis: _Analysis, pattern: Pattern) -> Axes:
    atoms = analysis.atoms
    dims = {
        value: tuple(None if row is None else atoms.all_leaves(row) for row in rows)
        for value, rows in analysis.dims.items()
    }
    reduced = {value: atoms.all_leaves(row) for value, row in analysis.reduced.items()}
    pieces = {
        key: tuple(atoms.all_leaves(row) for row in rows) for key, rows in analysis.pieces.items()
    }
    follower = _followers(dims, reduced, analysis.views, pattern)
    groups = _groups(follower)
    head = {axis: group[0] for group in groups for axis in group}
    extents: dict[Axis, Dim] = {}
    for rows in (*dims.values(), *((row,) for row in reduced.values()), *pieces.values()):
        for axis in (a for row in rows if row for a in row):
            extents.setdefault(axis, atoms.extents[axis])
    for group in groups:
        product: Dim = 1
        for axis in group:
            product = product * atoms.extents[axis]
        extents[group[0]] = product

    def keep(row: Row | None) -> Row | None:
        return None if row is None else tuple(a for a in row if head.get(a, a) == a)

    return Axes(
        extents,
        {value: tuple(map(keep, rows)) for value, rows in dims.items()},
        frozenset(analysis.views),
        {value: keep(row) or () for value, row in reduced.items()},
        frozenset(analysis.constant),
        {key: tuple(keep(row) or () for row in rows) for key, rows in pieces.items()},
    )


def _followers(
    dims: Mapping[Instruction, Dims],
    reduced: Mapping[Instruction, Row],
    views: Iterable[tuple[Instruction, int]],
    pattern: Pattern,
) -> dict[Axis, Axis]:
    """Axis -> the axis it is fused with: they vary together and are neighbours in memory."""
    signature: dict[Axis, int] = {}
    for number, (value, rows) in enumerate(dims.items()):
        for axis in {a for row in rows if row for a in row}:
            signature[axis] = signature.get(axis, 0) ^ hash((number, 0x9E3779B9))
        for axis in reduced.get(value, ()):
            signature[axis] = signature.get(axis, 0) ^ hash((number, 0x85EBCA6B))
    exposed = {value for consumer, i in views for value in (consumer, consumer.operands[i])}
    exposed |= {value for value in dims if op.record(value.opcode).kind == "constant"}
    next_of: dict[Axis, Axis | None] = {}
    for value in (*pattern.inputs, *pattern.outputs, *exposed):
        rows = dims[value]
        runs: Iterable[Row]
        if value in exposed:
            runs = [row for row in rows if row]
        else:
            run = tuple(a for row in rows if row for a in row)
            runs = [run] if run else []
        for run in runs:
            for axis, after in zip(run, (*run[1:], None), strict=True):
                if next_of.setdefault(axis, after) != after:
                    next_of[axis] = None
    return {
        axis: after
        for axis, after in next_of.items()
        if after is not None and signature[axis] == signature[after]
    }


def _groups(follower: Mapping[Axis, Axis]) -> list[tuple[Axis, ...]]:
    inner = set(follower.values())
    groups = []
    for axis in follower:
        if axis not in inner:
            group = [axis]
            while group[-1] in follower:
                group.append(follower[group[-1]])
            groups.append(tuple(group))
    return groups
