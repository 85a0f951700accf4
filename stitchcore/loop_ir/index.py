"""Integer index expressions over loop variables and symbols: small, frozen, simplified when built.

`Index = int | Node`. Build with the functions below (or the operators), never the classes: they
fold constants, flatten sums, and use ranges where given. Values are int64 on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stitchcore.hlo.ir.dim import Dim


class _Operators:
    __slots__ = ()

    def __add__(self, other: Index) -> Index:
        return add(self, other)  # type: ignore[arg-type]

    __radd__ = __add__

    def __sub__(self, other: Index) -> Index:
        return add(self, multiply(other, -1))  # type: ignore[arg-type]

    def __mul__(self, other: Index) -> Index:
        return multiply(self, other)  # type: ignore[arg-type]

    __rmul__ = __mul__

    def __floordiv__(self, other: Index) -> Index:
        return floor_divide(self, other)  # type: ignore[arg-type]

    def __mod__(self, other: Index) -> Index:
        return modulo(self, other)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Variable(_Operators):
    """A loop variable, a symbol of the kernel, or a Position."""

    name: str


@dataclass(frozen=True)
class Binary(_Operators):
    """`operator` is one of + * // % min max. Operands of // and % are never negative."""

    operator: str
    left: Index
    right: Index


Node = Variable | Binary
Index = int | Node


def add(left: Index, right: Index) -> Index:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if left == 0:
        return right
    if right == 0:
        return left
    if isinstance(left, int):
        left, right = right, left
    if isinstance(right, int) and isinstance(left, Binary) and left.operator == "+":
        if isinstance(left.right, int):
            return add(left.left, left.right + right)
    return Binary("+", left, right)


def multiply(left: Index, right: Index) -> Index:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if isinstance(left, int):
        left, right = right, left
    if right == 0:
        return 0
    if right == 1:
        return left
    if isinstance(right, int) and isinstance(left, Binary) and left.operator == "*":
        if isinstance(left.right, int):
            return multiply(left.left, left.right * right)
    return Binary("*", left, right)


def total(values: Iterable[Index]) -> Index:
    """Their sum."""
    result: Index = 0
    for value in values:
        result = add(result, value)
    return result


def product(values: Iterable[Index]) -> Index:
    """All of them multiplied, from the first on."""
    result: Index = 1
    for value in values:
        result = multiply(result, value)
    return result


def floor_divide(left: Index, right: Index) -> Index:
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    return left if right == 1 else Binary("//", left, right)


def modulo(left: Index, right: Index) -> Index:
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    return 0 if right == 1 else Binary("%", left, right)


def minimum(left: Index, right: Index) -> Index:
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return left if left == right else Binary("min", left, right)


def maximum(left: Index, right: Index) -> Index:
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return left if left == right else Binary("max", left, right)


def ceil_divide(left: Index, right: Index) -> Index:
    """Smallest integer not below left / right, for right > 0."""
    if isinstance(left, int) and isinstance(right, int):
        return -(-left // right)
    return floor_divide(add(left, add(right, -1)), right)


def from_dim(dim: Dim) -> Index:
    """A dimension as an index expression; symbols become variables of the same name."""
    if isinstance(dim, int):
        return dim
    total: Index = 0
    for monomial, coefficient in dim.terms:
        product: Index = 1
        for name, power in monomial:
            for _ in range(power):
                product = multiply(product, Variable(name))
        total = add(total, multiply(product, coefficient))
    return total


def evaluate(index: Index, bindings: Mapping[str, int]) -> int:
    """Value of `index`. Raises KeyError for an unbound variable."""
    if isinstance(index, int):
        return index
    if isinstance(index, Variable):
        return int(bindings[index.name])
    left, right = evaluate(index.left, bindings), evaluate(index.right, bindings)
    match index.operator:
        case "+":
            return left + right
        case "*":
            return left * right
        case "//":
            return left // right
        case "%":
            return left % right
        case "min":
            return min(left, right)
    return max(left, right)


Range = tuple[int, int]
"""Least and greatest value of a variable, both included."""


def bounds(index: Index, ranges: Mapping[str, Range]) -> Range | None:
    """A range that holds every value of `index`, or None when a variable's range is unknown."""
    if isinstance(index, int):
        return index, index
    if isinstance(index, Variable):
        return ranges.get(index.name)
    left, right = bounds(index.left, ranges), bounds(index.right, ranges)
    if left is None or right is None:
        return None
    match index.operator:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "*":
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        case "//":
            if right[0] < 1 or left[0] < 0:
                return None
            return left[0] // right[1], left[1] // right[0]
        case "%":
            if right[0] < 1 or left[0] < 0:
                return None
            return 0, min(left[1], right[1] - 1)
        case "min":
            return min(left[0], right[0]), min(left[1], right[1])
    return max(left[0], right[0]), max(left[1], right[1])


def simplify(index: Index, ranges: Mapping[str, Range]) -> Index:
    """An index of the same value for variables within `ranges`, with what these decide folded."""
    if not isinstance(index, Binary):
        return index
    left, right = simplify(index.left, ranges), simplify(index.right, ranges)
    first, second = bounds(left, ranges), bounds(right, ranges)
    if index.operator in ("+", "*"):
        return add(left, right) if index.operator == "+" else multiply(left, right)
    if first is None or second is None:
        return Binary(index.operator, left, right)
    match index.operator:
        case "min" if first[1] <= second[0]:
            return left
        case "min" if second[1] <= first[0]:
            return right
        case "max" if first[0] >= second[1]:
            return left
        case "max" if second[0] >= first[1]:
            return right
        case "//" if first[0] >= 0 and first[1] < second[0]:
            return 0
        case "%" if first[0] >= 0 and first[1] < second[0]:
            return left
    return Binary(index.operator, left, right)


def substitute(index: Index, values: Mapping[str, Index]) -> Index:
    """`index` with variables replaced by their `values`, where these have one."""
    if isinstance(index, int):
        return index
    if isinstance(index, Variable):
        return values.get(index.name, index)
    left, right = substitute(index.left, values), substitute(index.right, values)
    return BUILDERS[index.operator](left, right)


def rename(index: Index, names: Mapping[str, Index]) -> Index:
    """`index` with variables replaced as in `names`, and nothing folded: its text stays the same
    but for these."""
    if isinstance(index, Variable):
        return names.get(index.name, index)
    if isinstance(index, Binary):
        return Binary(index.operator, rename(index.left, names), rename(index.right, names))
    return index


def renamed_parts(index: Index, names: Mapping[Binary, str]) -> Index:
    """`index` with the largest parts that have a name replaced by a variable of that name."""
    if not names or not isinstance(index, Binary):
        return index
    if index in names:
        return Variable(names[index])
    left, right = renamed_parts(index.left, names), renamed_parts(index.right, names)
    return Binary(index.operator, left, right)


BUILDERS: Mapping[str, Callable[[Index, Index], Index]] = {
    "+": add,
    "*": multiply,
    "//": floor_divide,
    "%": modulo,
    "min": minimum,
    "max": maximum,
}
"""What makes a Binary of each operator, and folds what can be."""


def mentions(index: Index, variable: str) -> bool:
    """Whether `index` depends on `variable`."""
    if isinstance(index, Binary):
        return mentions(index.left, variable) or mentions(index.right, variable)
    return index == Variable(variable)


def collapse(index: Index) -> Index:
    """`index` with c*m*(x // m) + c*(x % m) written as c*x, wherever it is such a sum; c and m may
    hold symbols: a row of [s, 4, t] is found by its number, without a division."""
    terms: dict[_Product, int] = {}
    _add_products(index, 1, (), terms)
    joined = False
    while pair := _quotient_and_remainder(terms):
        remainder, quotient, number, others = pair
        times = terms.pop(remainder)
        del terms[quotient]
        _add_products(number, times, others, terms)
        joined = True
    if not joined:
        return index
    constant = terms.pop((), 0)
    return add(total(multiply(product(nodes), times) for nodes, times in terms.items()), constant)


_Product = tuple[Node, ...]
"""Factors that are not numbers, in an order of their own."""


def _add_products(index: Index, times: int, others: _Product, terms: dict[_Product, int]) -> None:
    """Add `index` times a number and other factors to a sum of products."""
    if isinstance(index, Binary) and index.operator == "+":
        _add_products(index.left, times, others, terms)
        _add_products(index.right, times, others, terms)
    elif isinstance(index, Binary) and index.operator == "*" and isinstance(index.right, int):
        _add_products(index.left, times * index.right, others, terms)
    else:
        number, nodes = _factors(index)
        key = _in_order((*nodes, *others))
        terms[key] = terms.get(key, 0) + times * number


def _in_order(nodes: _Product) -> _Product:
    return tuple(sorted(nodes, key=repr)) if len(nodes) > 1 else nodes


def _factors(index: Index) -> tuple[int, _Product]:
    """`index` as a number times factors."""
    if isinstance(index, int):
        return index, ()
    if isinstance(index, Binary) and index.operator == "*":
        left, right = _factors(index.left), _factors(index.right)
        return left[0] * right[0], (*left[1], *right[1])
    return 1, (index,)


def _quotient_and_remainder(
    terms: Mapping[_Product, int],
) -> tuple[_Product, _Product, Index, _Product] | None:
    """Two terms that are c*(x % m) and c*m*(x // m): the terms, x and the factors of c."""
    for nodes, times in terms.items():
        for n, node in enumerate(nodes):
            if not isinstance(node, Binary) or node.operator != "%" or times == 0:
                continue
            others = (*nodes[:n], *nodes[n + 1 :])
            number, symbols = _factors(node.right)
            whole = Binary("//", node.left, node.right)
            key = _in_order((*others, whole, *symbols))
            if terms.get(key) == times * number:
                return nodes, key, node.left, others
    return None


def gather(index: Index) -> Index:
    """`index` as a sum in which like terms are one, and those that cancel are none."""
    terms: dict[Node, int] = {}
    constant = _add_terms(index, 1, terms)
    return _sum(terms, constant)


def is_multiple(index: Index, of: int) -> bool:
    """Whether `index` is a multiple of `of` whatever its variables are, as its sum shows and what
    remainders in it leave."""
    counts, constant = terms(index)
    return constant % of == 0 and all(
        times % of == 0 or _leaves_multiple(term, of) for term, times in counts.items()
    )


def _leaves_multiple(term: Node, of: int) -> bool:
    if not isinstance(term, Binary) or term.operator != "%":
        return False
    return is_multiple(term.left, of) and is_multiple(term.right, of)


def terms(index: Index) -> tuple[dict[Node, int], int]:
    """`index` as a sum: how often each term, and a constant."""
    counts: dict[Node, int] = {}
    constant = _add_terms(index, 1, counts)
    return {term: times for term, times in counts.items() if times}, constant


def names(index: Index) -> frozenset[str]:
    """The variables of `index`."""
    if isinstance(index, Variable):
        return frozenset((index.name,))
    if isinstance(index, Binary):
        return names(index.left) | names(index.right)
    return frozenset()


def _sum(terms: Mapping[Node, int], constant: int) -> Index:
    total: Index = 0
    for node, times in terms.items():
        total = add(total, multiply(node, times))
    return add(total, constant)


def _add_terms(index: Index, times: int, terms: dict[Node, int]) -> int:
    """Add the terms of `index` times a number to `terms`; returns the constant among them."""
    if isinstance(index, int):
        return index * times
    if isinstance(index, Binary) and index.operator == "+":
        left = _add_terms(index.left, times, terms)
        return left + _add_terms(index.right, times, terms)
    if isinstance(index, Binary) and index.operator == "*" and isinstance(index.right, int):
        return _add_terms(index.left, times * index.right, terms)
    terms[index] = terms.get(index, 0) + times
    return 0


def postfix(index: Index, symbols: tuple[str, ...]) -> tuple[int, ...]:
    """`index` over symbols as the flat integer program of launch tables (docs/contracts.md).

    [length, (code, value)...]: code 0 pushes value, 1 pushes symbol number value, 2..7 apply
    + * // % min max to the two topmost entries.
    """
    program: list[int] = []

    def walk(node: Index) -> None:
        if isinstance(node, int):
            program.extend((0, node))
        elif isinstance(node, Variable):
            program.extend((1, symbols.index(node.name)))
        else:
            walk(node.left)
            walk(node.right)
            program.extend((2 + ("+", "*", "//", "%", "min", "max").index(node.operator), 0))

    walk(index)
    return (len(program), *program)
