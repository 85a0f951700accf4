"""Where values are while steps are written, and from when until when: what the arena is made from.

A temporary may *move*: become another place altogether, so that a result is made where it is
wanted. Program points are in text order; a loop's body is text that runs again, so a place that
outlives an iteration is touched at the loop's end too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stitchcore.hlo.ir.literal import Literal
from stitchcore.hlo.ir.shape import Shape
from stitchcore.launch.cuda_program import CudaLaunch, LaunchSchedule
from stitchcore.launch.cuda_table import Lifetime
from stitchcore.launch.place import Input, Place, Temporary
from stitchcore.runtime.gpu.program import (
    Array,
    Block,
    Choice,
    Copy,
    HostCall,
    LibraryCall,
    Loop,
    Step,
)

Tree = Any
"""An Array, or a tuple of trees."""


def tree(shape: Shape, leaf: Callable[[Shape], Array]) -> Tree:
    """The value of `shape` whose arrays `leaf` makes."""
    if shape.elements is not None:
        return tuple(tree(element, leaf) for element in shape.elements)
    return leaf(shape)


def leaves(value: Tree) -> list[Array]:
    """The arrays of a tree, in order."""
    if isinstance(value, Array):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def as_tree(like: Tree, arrays: Sequence[Array]) -> Tree:
    """`arrays` in the form of `like`."""
    remaining = iter(arrays)

    def build(part: Tree) -> Tree:
        return next(remaining) if isinstance(part, Array) else tuple(map(build, part))

    return build(like)


@dataclass
class _Life:
    """Of a temporary: bytes, first and last touch, and the point it was first written."""

    bytes: int
    first: int
    last: int
    defined: int | None = None


class Memory:
    """Parameters and constants are inputs of the program; all else starts as a temporary."""

    def __init__(self) -> None:
        self.now = 0
        self.parameters = 0
        self.constants: dict[Literal, int] = {}
        self.lives: list[_Life] = []
        self.last_read: dict[Place, int] = {}
        self.aliased_to: dict[Temporary, Place] = {}
        self.updates: dict[Temporary, set[Place]] = {}

    def tick(self) -> int:
        self.now += 1
        return self.now

    # ---- places -------------------------------------------------------------------------------
    def parameter(self, shape: Shape) -> Tree:
        """A parameter's leaves. All parameters come before the first constant."""

        def leaf(part: Shape) -> Array:
            self.parameters += 1
            return Array(Input(self.parameters - 1), part.dtype, part.static)

        return tree(shape, leaf)

    def constant(self, value: Literal) -> Array:
        number = self.constants.setdefault(value, len(self.constants))
        return Array(Input(self.parameters + number), value.dtype, value.dims)

    def fresh(self, shape: Shape) -> Array:
        place = Temporary(len(self.lives))
        array = Array(place, shape.dtype, shape.static)
        self.lives.append(_Life(array.bytes, self.now, self.now))
        return array

    def fresh_like(self, array: Array) -> Array:
        return self.fresh(Shape(array.dtype, array.dims))

    # ---- use ----------------------------------------------------------------------------------
    def read(self, *arrays: Array) -> None:
        self.touch(*arrays)
        for array in arrays:
            self.last_read[array.place] = self.now

    def write(self, *arrays: Array) -> None:
        self.touch(*arrays)
        for array in arrays:
            if isinstance(array.place, Temporary):
                life = self.lives[array.place.position]
                life.defined = self.now if life.defined is None else life.defined

    def touch(self, *arrays: Array) -> None:
        """They live at this point."""
        for array in arrays:
            if isinstance(array.place, Temporary):
                self.lives[array.place.position].last = self.now

    def update(self, result: Array, operand: Array) -> None:
        """The step that makes `result` may make it where `operand` is."""
        assert isinstance(result.place, Temporary)
        self.updates.setdefault(result.place, set()).add(operand.place)

    def move(self, value: Array, target: Array, start: int) -> bool:
        """Have `value` made where `target` is, if it is made after `start` and what was there
        before is not read from then on; whether that is so."""
        place = value.place
        if not isinstance(place, Temporary) or place in self.aliased_to:
            return False
        defined = self.lives[place.position].defined
        if defined is None or defined <= start:
            return False
        read = self.last_read.get(target.place, 0)
        if read > defined or (read == defined and target.place not in self.updates.get(place, ())):
            return False
        self.aliased_to[place] = target.place
        return True

    def final(self, place: Place) -> Place:
        """Where what is at `place` has moved to."""
        while isinstance(place, Temporary) and place in self.aliased_to:
            place = self.aliased_to[place]
        return place

    # ---- the result ---------------------------------------------------------------------------
    def schedule(self, points: Sequence[int]) -> LaunchSchedule:
        """Lives of all temporaries that stayed, with those of what moved there."""
        live: dict[Temporary, Lifetime] = {}
        for number, life in enumerate(self.lives):
            place = self.final(Temporary(number))
            if isinstance(place, Temporary):
                known = live.get(place, Lifetime(life.bytes, life.first, life.last))
                first, last = min(known.first, life.first), max(known.last, life.last)
                live[place] = Lifetime(life.bytes, first, last)
        return LaunchSchedule(tuple(points), live)

    def launch(self, launch: CudaLaunch) -> CudaLaunch:
        """`launch` with the places that its buffers moved to."""
        inputs = tuple(map(self.final, launch.inputs))
        return replace(launch, inputs=inputs, outputs=tuple(map(self.final, launch.outputs)))

    def resolved(self, block: Sequence[Step]) -> Block:
        """Steps with final places; a copy of something to where it is goes."""
        steps: list[Step] = []
        for step in block:
            match step:
                case Copy(source, target):
                    if self.final(source.place) != self.final(target.place):
                        steps.append(Copy(self._resolve(source), self._resolve(target)))
                case LibraryCall(node, operands, results) | HostCall(node, operands, results):
                    arrays = tuple(map(self._resolve, operands)), tuple(map(self._resolve, results))
                    steps.append(type(step)(node, *arrays))
                case Loop(condition, predicate, body, trips):
                    parts = self.resolved(condition), self._resolve(predicate), self.resolved(body)
                    steps.append(Loop(*parts, trips))
                case Choice(index, branches):
                    steps.append(Choice(self._resolve(index), tuple(map(self.resolved, branches))))
                case _:
                    steps.append(step)
        return tuple(steps)

    def _resolve(self, array: Array) -> Array:
        return replace(array, place=self.final(array.place))


def is_updated(operands: Sequence[Array]) -> bool:
    """Whether only the first operand is where it is, so that the result may be made there."""
    return all(operand.place != operands[0].place for operand in operands[1:])
