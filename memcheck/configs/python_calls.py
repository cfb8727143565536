"""Calls of a Python file's own functions and classes: what they return, and the objects that they make."""

from __future__ import annotations

import ast

from memcheck.configs.python_code import LocalClass, LocalFunction, LocalNames, named, stated_value
from memcheck.configs.python_expressions import FollowedCode
from memcheck.configs.python_options import declared
from memcheck.configs.python_values import ImportedName, MadeObject, PythonValue, joined

MOST_RETURNS = 8
"""Returns of a function of which the values are compared."""
MOST_DECORATORS = 60
"""Decorators of one function that are looked at."""
_FIELDS = ("field", "Field", "HfArg")


class FollowedCalls(FollowedCode):
    """The part of a reading that follows calls into the file."""

    def call(
        self,
        function: LocalFunction,
        arguments: list[PythonValue],
        keywords: dict[str, PythonValue],
        node: ast.AST,
        blank: str = "",
    ) -> PythonValue:
        """What a function of the file returns. ``blank``: why its parameters without a value are unknown."""
        code = function.node
        if code in self.active or len(self.active) > 20:
            return self.unknown(node, "a function that calls itself")
        scope = LocalNames(function.scope)
        for name, value in self._bound(function, arguments, keywords, blank).items():
            stated = self.option(name) if blank else self.defines.get(name)
            over = stated is not None and not isinstance(value.of, MadeObject)
            scope.names[name] = value._replace(of=stated_value(str(stated)), option="") if over else value
        before, self.scope, cell, self.cell = self.scope, scope, self.cell, function.cell
        started, self.started_at = self.started_at, len(self.pending)
        self.active.append(code)
        self.called.add(id(code))
        try:
            if isinstance(code, ast.Lambda):
                return self.value(code.body)
            self.block(code.body)
        finally:
            self.active.pop()
            self.scope, self.cell, self.started_at = before, cell, started
        if not scope.returned:
            return PythonValue(None, self.at(node))
        said = [each for each in scope.returned if each.of is not None] or scope.returned
        last, left = said[-1], self.unknown(node, "a function that returns this or that")
        for each in said[-MOST_RETURNS:-1]:
            last = joined(each, last, left)
        return last if len(said) <= MOST_RETURNS else left

    def _bound(
        self, function: LocalFunction, arguments: list[PythonValue], keywords: dict[str, PythonValue], blank: str
    ) -> dict[str, PythonValue]:
        spec = function.node.args
        names = [*spec.posonlyargs, *spec.args]
        found: dict[str, PythonValue] = {}
        if function.owner is not None and names:
            found[names.pop(0).arg] = PythonValue(function.owner, self.at(function.node))
        before, self.scope = self.scope, function.scope
        cell, self.cell = self.cell, function.cell
        defaults = dict(zip([each.arg for each in names[::-1]], spec.defaults[::-1], strict=False))
        defaults |= {
            each.arg: default for each, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default
        }
        for number, each in enumerate([*names, *spec.kwonlyargs]):
            if number < min(len(arguments), len(names)):
                found[each.arg] = arguments[number]
            elif each.arg in keywords:
                found[each.arg] = keywords[each.arg]
            elif each.arg in defaults:
                value = self.value(defaults[each.arg])
                found[each.arg] = value._replace(option=f"--{each.arg}") if blank and self.options is None else value
            else:
                declared = self.declared(function.node, each.arg)
                left = self.unknown(each, f"`{each.arg}`", option=f"--{each.arg}" if blank else "")
                found[each.arg] = left if declared is None else declared
        if spec.kwarg is not None:
            rest = {name: value for name, value in keywords.items() if name not in found}
            found[spec.kwarg.arg] = PythonValue(rest, self.at(spec.kwarg))
        if spec.vararg is not None:
            found[spec.vararg.arg] = PythonValue(arguments[len(names) :], self.at(spec.vararg))
        self.scope, self.cell = before, cell
        return found

    def declared(self, node: ast.AST, name: str) -> PythonValue | None:
        """The value that a decorator gives to a parameter: an option of click's, or the config of ``hydra.main``."""
        for each in getattr(node, "decorator_list", ())[:MOST_DECORATORS]:
            if isinstance(each, ast.Call):
                found = declared(self, each, name)
                if found is not None:
                    return found
        return None

    def made(
        self, kind: LocalClass, arguments: list[PythonValue], keywords: dict[str, PythonValue], node: ast.Call
    ) -> PythonValue:
        """An object of a class of the file: its fields, then what its ``__init__`` sets."""
        base = next((each for each in kind.bases if each[:1].isupper()), kind.node.name)
        fields = self.fields(kind)
        keywords = self._nested(kind, keywords, node) if "BaseModel" in kind.bases else keywords
        named_fields = dict(zip(fields, arguments, strict=False)) if fields else {}
        library = self.library(self, self.library_call(base, arguments, {**fields, **named_fields, **keywords}, node))
        thing = library.of if library is not None and isinstance(library.of, MadeObject) else None
        if thing is None:
            thing = MadeObject(kind.node.name, arguments, {**fields, **named_fields, **keywords}, self.at(node))
            self.things.append(thing)
        thing.kind, thing.depth = kind, len(self.pending)
        if "dict" in kind.bases and arguments and isinstance(arguments[0].of, dict):
            thing.keywords.update((str(key), each) for key, each in arguments[0].of.items())
        method = self.method(thing, "__init__")
        if method is not None:
            self.call(method, arguments, keywords, node)
        for name in ("__getitem__", "__call__"):
            method = self.method(thing, name)
            if method is not None:
                self.rows += 1
                self.call(method, [], {}, node)
                self.rows -= 1
        return PythonValue(thing, self.at(node))

    def _nested(self, kind: LocalClass, said: dict[str, PythonValue], node: ast.Call) -> dict[str, PythonValue]:
        """The fields that pydantic gets, with an object of its class for each mapping whose field has one."""
        found = dict(said)
        for each in kind.node.body:
            field = each.target.id if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) else ""
            value = found.get(field)
            inner = (
                kind.scope.find(each.annotation.id)
                if (isinstance(each, ast.AnnAssign) and isinstance(each.annotation, ast.Name))
                else None
            )
            if (
                value is not None
                and isinstance(value.of, dict)
                and inner is not None
                and isinstance(inner.of, LocalClass)
            ):
                found[field] = self.made(inner.of, [], {str(name): part for name, part in value.of.items()}, node)
        return found

    def fields(self, kind: LocalClass, option: str = "") -> dict[str, PythonValue]:
        """The fields of a class and their defaults. ``option``: they are options of a command line."""
        found: dict[str, PythonValue] = {}
        for base in (*reversed(kind.bases), ""):
            inner = kind.scope.find(base) if base else None
            if not base or (inner is not None and isinstance(inner.of, LocalClass)):
                found |= self._own_fields(kind if inner is None else inner.of, option)
        return found

    def _own_fields(self, kind: LocalClass, option: str) -> dict[str, PythonValue]:
        mark = ("fields", id(kind.node))
        if mark in self.active or len(self.active) > 20:
            return {}  # the class is made in its own default
        self.active.append(mark)
        try:
            return self._set_fields(kind, option)
        finally:
            self.active.pop()

    def _set_fields(self, kind: LocalClass, option: str) -> dict[str, PythonValue]:
        found: dict[str, PythonValue] = {}
        before, cell, self.cell = self.scope, self.cell, kind.cell
        self.scope = LocalNames(kind.scope)
        for each in kind.node.body:
            target = each.target if isinstance(each, ast.AnnAssign) else None
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                target = each.targets[0]
            if not isinstance(target, ast.Name) or not isinstance(each, (ast.Assign, ast.AnnAssign)):
                continue
            said = f"--{target.id}" if option else ""
            value = self.unknown(each, option=said) if each.value is None else self._default(each.value)
            stated = self.defines.get(target.id)
            value = (
                value._replace(option=said) if stated is None else value._replace(of=stated_value(stated), option="")
            )
            found[target.id] = self.scope.names[target.id] = value
        self.scope, self.cell = before, cell
        return found

    def _default(self, node: ast.expr) -> PythonValue:
        """The default of a dataclass's field: its value, or what ``field(default=...)`` says."""
        if not (isinstance(node, ast.Call) and named(node.func).strip("`").rpartition(".")[2] in _FIELDS):
            return self.value(node)
        if node.args:  # pydantic's
            return self.value(node.args[0])
        for keyword in node.keywords:
            if keyword.arg == "default":
                return self.value(keyword.value)
            if keyword.arg == "default_factory":
                factory = self.value(keyword.value)
                if isinstance(factory.of, LocalClass):
                    return self.made(factory.of, [], {}, node)
                if isinstance(factory.of, LocalFunction):
                    return self.call(factory.of, [], {}, node)
                if isinstance(factory.of, ImportedName) and factory.of.path in ("list", "dict"):
                    return PythonValue([] if factory.of.path == "list" else {}, self.at(node))
                return self.unknown(node)
        return self.unknown(node)
