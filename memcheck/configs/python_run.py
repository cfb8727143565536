"""Follows the statements of a Python file in their order, without running it: which values reach which call.

Assignments, calls of the file's own functions and classes, and conditions whose outcome is known are followed. Of any
other condition both branches are read, and what differs after them is unknown. Loops are followed once,
with what all elements of their list have alike.
"""

from __future__ import annotations

import ast
from functools import reduce
from typing import Any

from memcheck.configs.python_calls import FollowedCalls
from memcheck.configs.python_code import (
    LocalClass,
    LocalFunction,
    LocalNames,
    TooMuchError,
    named,
    stated_value,
    truth,
)
from memcheck.configs.python_expressions import ARGV, DEEPEST
from memcheck.configs.python_values import (
    LIBRARIES,
    MOST_JOINED,
    UNKNOWN,
    ImportedName,
    MadeObject,
    PythonValue,
    joined,
    plain,
)

MOST_MODULES = 12
"""Modules of the user's own that are followed."""
OTHERS = frozenset(
    {*LIBRARIES, "os", "sys", "re", "json", "math", "time", "random", "logging", "argparse", "typing", "dataclasses"}
    | {
        "pathlib",
        "yaml",
        "pandas",
        "tqdm",
        "wandb",
        "collections",
        "functools",
        "itertools",
        "huggingface_hub",
        "megatron",
    }
)
"""Packages that are no file next to the user's."""


def _leaves(last: ast.stmt) -> bool:
    """Whether a branch ends the program or the function, as one does that prints how to call it."""
    call = last.value if isinstance(last, ast.Expr) else None
    return isinstance(last, (ast.Return, ast.Raise)) or (isinstance(call, ast.Call) and "exit" in named(call.func))


class FollowedFile(FollowedCalls):
    """The reading of a whole file."""

    def all(self) -> None:
        """Follow every cell."""
        try:
            for cell in self.code.cells:
                self.cell = cell
                self.block(cell.tree.body if cell.tree is not None else [])
        except TooMuchError:
            self.cut = True

    # -- statements

    def uncalled(self) -> None:
        """Follow the functions of the file that nothing in it calls: its caller gives their parameters."""
        for value in list(self.main.names.values()):
            if isinstance(value.of, LocalFunction) and id(value.of.node) not in self.called:
                try:
                    self.call(value.of, [], {}, value.of.node, blank="the caller")
                except TooMuchError:
                    self.cut = True

    def block(self, body: list[ast.stmt]) -> None:
        """Follow statements until one returns."""
        for statement in body:
            if self.scope.ended:
                return
            self.step()
            self.depth += 1
            try:
                if self.depth > DEEPEST:
                    self.cut = True
                    return
                self._statement(statement)
            finally:
                self.depth -= 1

    def _statement(self, node: ast.stmt) -> None:
        found = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if found is not None:
            found(node)

    def _on_expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _on_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def _on_augassign(self, node: ast.AugAssign) -> None:
        before, more = self.value(node.target), self.value(node.value)
        self.assign(node.target, self.combine(node, before, more, node.op))

    def _on_import(self, node: ast.Import) -> None:
        for each in node.names:
            name = each.asname or each.name.partition(".")[0]
            path = each.name if each.asname else name
            inner = self.module(each.name, 0)
            value = ImportedName(path) if inner is None or not each.asname else self._as_object(inner, node)
            self.scope.names[name] = PythonValue(value, self.at(node), why=f"`{each.name}`")

    def _as_object(self, names: LocalNames, node: ast.AST) -> MadeObject:
        """A module of the user's own, whose names are attributes."""
        return MadeObject("module", [], names.names, self.at(node))

    def _on_importfrom(self, node: ast.ImportFrom) -> None:
        inner = self.module(node.module or "", node.level)
        for each in node.names:
            if each.name == "*":
                self.scope.names.update({} if inner is None else inner.names)
                package = (node.module or "").partition(".")[0]
                self.starred = package if not node.level and package in LIBRARIES else self.starred
                continue
            path, found = f"{'.' * node.level}{node.module or ''}.{each.name}", None
            if inner is not None:
                found = inner.names.get(each.name)
            why = f"`{each.name}` of `{node.module or '.'}`"
            self.scope.names[each.asname or each.name] = found or PythonValue(
                ImportedName(path), self.at(node), why=why
            )

    def module(self, name: str, level: int) -> LocalNames | None:
        """The names of a module of the user's own, next to the file or around it; None for every other module.

        ``level``: the dots before its name. The module is followed like the file itself, once.
        """
        parts = [part for part in name.split(".") if part]
        if self.near is None or (not level and (not parts or parts[0] in OTHERS)) or len(self.modules) > MOST_MODULES:
            return None
        key = f"{'.' * level}{name}" + (self.cell.path if level else "")
        if key not in self.modules:
            self.modules[key] = None  # a circle of imports ends here
            found = self.near.module("/".join(parts), level, self.cell.path)
            if found is None:
                return None
            before, cell, active = self.scope, self.cell, self.started_at
            self.scope = self.modules[key] = LocalNames()
            self.scope.names["__name__"] = PythonValue(name, self.at(ast.Pass()))
            for self.cell in found.cells:
                self.block(self.cell.tree.body if self.cell.tree is not None else [])
            self.scope, self.cell, self.started_at = before, cell, active
        return self.modules[key]

    def _on_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.scope.names[node.name] = PythonValue(LocalFunction(node, self.scope, self.cell), self.at(node))

    _on_asyncfunctiondef = _on_functiondef

    def _on_classdef(self, node: ast.ClassDef) -> None:
        bases: list[str] = []
        for each in node.bases:
            found = self.value(each).of
            bases += (
                [found.node.name, *found.bases]
                if isinstance(found, LocalClass)
                else [found.last if isinstance(found, ImportedName) else named(each).strip("`").rpartition(".")[2]]
            )
        self.scope.names[node.name] = PythonValue(
            LocalClass(node=node, scope=self.scope, cell=self.cell, bases=tuple(dict.fromkeys(bases))), self.at(node)
        )

    def _on_return(self, node: ast.Return) -> None:
        value = self.value(node.value) if node.value is not None else PythonValue(None, self.at(node))
        self.scope.returned.append(value._replace(option=value.option or self.chosen))
        self.scope.ended = not self.pending or self.started_at == len(self.pending)

    def _on_if(self, node: ast.If) -> None:
        test = self.value(node.test)
        if test.known:
            chosen = self.chosen
            self.chosen = test.option or chosen
            body, other = (node.body, node.orelse) if truth(test) else (node.orelse, node.body)
            self.block(other if test.option == ARGV and body and _leaves(body[-1]) else body)
            self.chosen = chosen
            return
        self.pending.append(f"the `if` on line {self.at(node).span.line} ({test.why})")
        scope, before = self.scope, dict(self.scope.names)
        self.block(node.body)
        scope.ended = False
        first, scope.names = scope.names, dict(before)
        self.block(node.orelse)
        scope.ended = False
        why = self.pending.pop()
        scope.names = self._joined(first, scope.names, why, by_gpu=test.by_gpu)

    def _joined(
        self, one: dict[str, PythonValue], other: dict[str, PythonValue], why: str, *, by_gpu: bool
    ) -> dict[str, PythonValue]:
        """Names after two branches of which one runs: what differs is unknown."""
        found = {**one, **other}
        for name in one.keys() & other.keys():
            left = PythonValue(UNKNOWN, other[name].at, why=why, by_gpu=by_gpu)
            found[name] = joined(one[name], other[name], left)
        return found

    def _on_for(self, node: ast.For | ast.AsyncFor) -> None:
        over = self.value(node.iter)
        left = self.unknown(node, f"the loop on line {self.at(node).span.line}")
        for name in (each for each in ast.walk(node.target) if isinstance(each, ast.Name)):
            self.scope.names[name.id] = left
        if isinstance(over.of, list) and 0 < len(over.of) <= MOST_JOINED:
            self.assign(node.target, reduce(lambda one, other: joined(one, other, left), over.of))
        self._once(node.body)
        self.block(node.orelse)

    _on_asyncfor = _on_for

    def _on_while(self, node: ast.While) -> None:
        self.value(node.test)
        self._once(node.body)

    def _once(self, body: list[ast.stmt]) -> None:
        self.looping += 1
        try:
            self.block(body)
        finally:
            self.looping -= 1

    def _on_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        self.block(node.body)

    _on_asyncwith = _on_with

    def _on_try(self, node: ast.Try) -> None:
        self.block(node.body)
        self.block(node.orelse)
        self.block(node.finalbody)

    _on_trystar = _on_try

    def _on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.scope.names.pop(target.id, None)

    def _on_match(self, node: Any) -> None:
        self.pending.append(f"the `match` on line {self.at(node).span.line}")
        for case in node.cases:
            self.block(case.body)
        self.pending.pop()

    # -- targets

    def assign(self, target: ast.expr, value: PythonValue) -> None:
        """Give a value to a name, an attribute, an element, or several of them."""
        if self.pending and isinstance(target, (ast.Attribute, ast.Subscript)):
            held = self.value(target.value).of
            if not isinstance(held, MadeObject) or held.depth < len(self.pending):
                value = value._replace(of=UNKNOWN, why=self.pending[-1])
        if self.chosen and not value.option:
            value = value._replace(option=self.chosen)
        if isinstance(target, ast.Name):
            stated = self.defines.get(target.id)
            changed = (
                value if stated is None or isinstance(value.of, MadeObject) else value._replace(of=stated_value(stated))
            )
            self.scope.names[target.id] = changed
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.of if isinstance(value.of, list) else None
            for number, each in enumerate(target.elts):
                known = parts is not None and number < len(parts) and not isinstance(each, ast.Starred)
                self.assign(each, parts[number] if known and parts is not None else self.unknown(target, value.why))
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value).of
            if isinstance(owner, MadeObject):
                owner.keywords[target.attr] = value
            if target.attr == "requires_grad":
                thing = MadeObject("requires_grad", [value], {}, self.at(target))
                self.things.append(thing)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value).of, plain(self.value(target.slice))
            if isinstance(owner, dict) and isinstance(key, (str, int)):
                owner[key] = value
            elif isinstance(owner, ImportedName) and owner.path == "os.environ" and isinstance(key, str):
                self.main.names[f"os.environ[{key}]"] = value
