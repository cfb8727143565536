"""Chooses more plans for ``benchmarks.figures`` by what their engine decides and computes on the way.

    python -m benchmarks.probes SEED COUNT

Modules are compiled with a probe at every comparison, operand, sum, product, loop and choice. A probe tells not only
which way it went, but how near the other way was: ``>`` with equal sides, a product by one, a quotient without a rest,
a maximum of equals. A plan is kept for something that no plan before it showed; without it a small change there would
leave every figure as it is. What a plan does not need for that is taken out of it.
"""

from __future__ import annotations

import ast
import builtins
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

ROOMS = tuple(
    f"memcheck.{room}." for room in ("accounts", "autograd", "frameworks", "job", "memory", "models", "rules", "timing")
)
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    ast.Add: (operator.add, operator.sub), ast.Sub: (operator.sub, operator.add),
    ast.Mult: (operator.mul, operator.add), ast.Div: (operator.truediv, operator.mul),
    ast.FloorDiv: (operator.floordiv, operator.mul), ast.Mod: (operator.mod, operator.floordiv),
}  # fmt: skip
"""Each with what might stand there instead."""

_numbers: dict[tuple[object, ...], int] = {}
_seen: set[int] = set()


def told(*what: object) -> None:
    """Take it down."""
    _seen.add(_numbers.setdefault(what, len(_numbers)))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def probe_truth(place: str, value: Any) -> Any:
    """A condition, or one of its operands."""
    told(place, bool(value))
    return value


def probe_compare(place: str, compare: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Two sides; of whole numbers how far they are apart, up to two."""
    found = compare(left, right)
    if _number(left) and _number(right):
        told(place, max(-2, min(2, left - right)) if isinstance(left - right, int) else (left > right) - (left < right))
    else:
        told(place, bool(found))
    return found


def probe_compute(place: str, ways: Sequence[Callable[[Any, Any], Any]], left: Any, right: Any) -> Any:
    """An operation on two numbers: whether another one would have given something else."""
    found = ways[0](left, right)
    if _number(left) and _number(right):
        try:
            told(place, ways[1](left, right) != found, bool(left), bool(found))
        except (ArithmeticError, ValueError):
            told(place, "impossible", bool(left), bool(found))
    else:
        told(place, "of other things")
    return found


def probe_pick(place: str, pick: Callable[..., Any], *values: Any, **how: Any) -> Any:
    """Of several values which is the highest or lowest, and whether it is alone."""
    found = pick(*values, **how)
    if len(values) > 1:
        told(place, *[value == found for value in values])
    elif not how.get("key"):
        told(place, "of many")
    return found


class ProbeLoop:
    """How often a loop runs, up to twice. Holds nothing that it hands out: a tensor dies where it died before."""

    def __init__(self, place: str, values: Any) -> None:
        self.place, self.count, self.values = place, 0, iter(values)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.values)
        except StopIteration:
            told(self.place, self.count)
            raise
        finally:
            self.count = min(2, self.count + 1)


PROBES: dict[str, object] = {
    "probe_truth": probe_truth, "probe_compare": probe_compare, "probe_compute": probe_compute,
    "probe_pick": probe_pick, "ProbeLoop": ProbeLoop,
    **{f"probe_{kind.__name__}": how for kind, how in (*COMPARED.items(), *COMPUTED.items())},
}  # fmt: skip
"""The names under which modules find them."""


class Probed(ast.NodeTransformer):
    """A module with its probes."""

    def __init__(self, module: str) -> None:
        self.module = module

    def _call(self, probe: str, node: ast.expr, *rest: ast.expr, more: Sequence[ast.keyword] = ()) -> ast.Call:
        place = f"{self.module} {type(node).__name__} {node.lineno} {node.col_offset} {node.end_col_offset}"
        name = ast.Name(probe, ast.Load())
        return ast.copy_location(ast.Call(name, [ast.Constant(place), *rest], list(more)), node)

    def _truth(self, node: ast.expr) -> ast.expr:
        return self._call("probe_truth", node, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """What is annotated, not its type."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        """Types and defaults of arguments stay as they are."""
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """One comparison of two; a chain, an identity and a membership only tell what comes out."""
        self.generic_visit(node)
        if len(node.ops) > 1 or type(node.ops[0]) not in COMPARED:
            return self._truth(node)
        how = ast.Name(f"probe_{type(node.ops[0]).__name__}", ast.Load())
        return self._call("probe_compare", node, how, node.left, node.comparators[0])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """What is computed."""
        self.generic_visit(node)
        if type(node.op) not in COMPUTED:
            return node
        ways = ast.Name(f"probe_{type(node.op).__name__}", ast.Load())
        return self._call("probe_compute", node, ways, node.left, node.right)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Each operand that is looked at."""
        self.generic_visit(node)
        node.values = [self._truth(value) for value in node.values]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A maximum or minimum."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id not in ("max", "min"):
            return node
        return self._call("probe_pick", node, node.func, *node.args, more=node.keywords)

    def visit_If(self, node: ast.If) -> ast.AST:
        """Which way."""
        self.generic_visit(node)
        node.test = self._truth(node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Which way."""
        self.generic_visit(node)
        node.test = self._truth(node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """How often."""
        self.generic_visit(node)
        node.iter = self._call("ProbeLoop", node.iter, node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """How often, and for which."""
        self.generic_visit(node)
        node.iter = self._call("ProbeLoop", node.iter, node.iter)
        node.ifs = [self._truth(test) for test in node.ifs]
        return node


class Loader(SourceFileLoader):
    """Compiles a module with its probes, and keeps no bytecode of it."""

    def get_code(self, fullname: str) -> CodeType:
        """The module's code."""
        tree = Probed(fullname).visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class Finder:
    """Finds the modules of the engine."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module, to be loaded with probes."""
        spec = PathFinder.find_spec(name, path, target) if f"{name}.".startswith(ROOMS) else None
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


def shown(run: Callable[[], object]) -> int:
    """What probes tell while it runs, as the bits of a number: the same ones whenever they tell the same."""
    _seen.clear()
    run()
    bits = bytearray(len(_numbers) // 8 + 1)
    for number in _seen:
        bits[number // 8] |= 1 << number % 8
    return int.from_bytes(bits, "little")


def main(arguments: list[str]) -> int:
    """Choose, and write the plans."""
    vars(builtins).update(PROBES)
    sys.meta_path.insert(0, Finder)
    from benchmarks import figure_plans, figures  # import the engine, which is probed from here on

    known = figure_plans.chosen(figures.plans(), shown, *map(int, arguments))
    figures.write(figures.PLANS, known)
    print("now: " + figures.COMMAND)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
