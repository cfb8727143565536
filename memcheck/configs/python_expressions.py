"""What expressions of a Python file give, without running it.

Values that only running it would give are unknown, together with what they hang on. Depth, texts, lists and the number
of steps are bounded. What libraries do is in ``python_library.py``, and
calls of the file's own functions and classes are in ``python_calls.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from memcheck.configs.python_code import (
    CodeCell,
    FilesAround,
    Library,
    LibraryCall,
    LocalClass,
    LocalFunction,
    LocalNames,
    PythonCode,
    TooMuchError,
    decorated,
    named,
    place,
    stated_value,
    truth,
)
from memcheck.configs.python_values import (
    LONGEST,
    UNKNOWN,
    UNSET,
    ImportedName,
    MadeObject,
    PythonValue,
    bounded,
    combined,
    compared,
    converted,
    is_whole,
    joined,
    parent_of,
    parts,
    plain,
)
from memcheck.plan.finding import Location

MOST_STEPS = 25_000
ARGV = "sys.argv"
DEEPEST = 100
"""Expressions, statements and calls inside each other."""
NAMES = "names"
"""The name of a thing that stands for the names that a class of a library takes, each known to be one or not."""
SHORTEST_ROW = 16
PROPERTIES = {"property", "cached_property"}
VALIDATES = ("model_validate", "parse_obj", "model_construct")
"""Class methods of pydantic's models that take a mapping of fields."""
SPACES = ("Namespace", "SimpleNamespace")
"""Objects whose attributes are all known."""
MOST_COMPRISED = 200
"""Elements of a list that a comprehension goes over."""
_Made = TypeVar("_Made")
MOST_ABOVE = 8
"""Folders above a script."""
MOST_WRITTEN = 2 * 2**20
"""Characters and elements that all values together may take."""


def _bound(method: LocalFunction, owner: MadeObject | LocalClass) -> LocalFunction:
    """A method with what it gets as its first parameter: the object, its class for a class method, or nothing."""
    ways = decorated(method)
    kind = owner.kind if isinstance(owner, MadeObject) else owner
    if "classmethod" in ways:
        return method._replace(owner=kind) if isinstance(kind, LocalClass) else method
    return method if "staticmethod" in ways or kind is owner else method._replace(owner=owner)


class FollowedCode:
    """One reading of a file: the names and values at the place that it has come to."""

    def __init__(
        self,
        code: PythonCode,
        library: Library,
        defines: Mapping[str, str],
        machine: Any,
        near: FilesAround | None = None,
    ) -> None:
        self.code = code
        self.library = library
        self.options: Mapping[str, str] | None = None
        """The arguments of the launch line, where there is one: what it leaves out has its default."""
        self.words: tuple[str, ...] = ()
        """The words of the launch line that are no options."""
        self.taken: set[str] = set()
        """The options that the code takes."""
        self.takes_all = False
        """Whether it takes options that are not known: those of a library's classes, or any."""
        self.defines = defines
        """Values that the user states for names, options and variables of the environment."""
        self.near = near
        """The files around the user's file; None: no other file is read."""
        self.modules: dict[str, LocalNames | None] = {}
        self.starred = ""
        """The library whose names the file has by ``import *``; of several, the last."""
        """The user's own modules, by their name."""
        self.machine = machine
        """What is known of the GPU."""
        self.main = LocalNames()
        self.scope = self.main
        self.cell = code.cells[0] if code.cells else CodeCell(None, code.path, ())
        self.pending: list[str] = []
        """The conditions, not decided, around the statement that is read."""
        self.things: list[MadeObject] = []
        """What calls made, in their order."""
        self.called: set[int] = set()
        """Calls and functions that were followed, by the identity of their node."""
        self.chosen = ""
        """The option whose default decides the branch that is read; empty in none."""
        self.looping = self.rows = 0
        """Loops, and functions that make a row of the data, around the statement that is read."""
        self.cut = False
        """Whether the reading ended before the file did."""
        self.steps = self.depth = self.written = self.started_at = 0
        self.active: list[object] = []

    def at(self, node: ast.AST) -> Location:
        """The place of a node in the file."""
        return place(self.cell, node)

    def option(self, name: str) -> str | None:
        """What the launch line or the user states for an option of the command line; None where neither does."""
        self.taken.add(name)
        found = (self.options or {}).get(name)
        return self.defines.get(name) if found is None else found

    def argv(self, node: ast.AST) -> PythonValue:
        """The words of the command line: of a file alone its own name, which is a default like that of an option."""
        options = [word for name, said in (self.options or {}).items() for word in (f"--{name}", said)]
        if self.words and options:
            return self.unknown(node, "the order of the command line's words")
        at, option = self.at(node), "" if self.options is not None else ARGV
        words = (self.code.path, *self.words, *options)
        return PythonValue([PythonValue(word, at, option=option) for word in words], at, option=option)

    def unknown(self, node: ast.AST, why: str = "", *, by_gpu: bool = False, option: str = "") -> PythonValue:
        """A value that is not known, and what it hangs on."""
        return PythonValue(UNKNOWN, self.at(node), why=why or named(node), by_gpu=by_gpu, option=option)

    def block(self, body: list[ast.stmt]) -> None:
        """Follow statements: see ``python_run.py``."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: PythonValue) -> None:
        """Give a value to a name: see ``python_run.py``."""
        raise NotImplementedError

    def call(
        self,
        function: LocalFunction,
        arguments: list[PythonValue],
        keywords: dict[str, PythonValue],
        node: ast.AST,
        blank: str = "",
    ) -> PythonValue:
        """What a function of the file returns: see ``python_calls.py``."""
        raise NotImplementedError

    def made(
        self, kind: LocalClass, arguments: list[PythonValue], keywords: dict[str, PythonValue], node: ast.Call
    ) -> PythonValue:
        """An object of a class of the file: see ``python_calls.py``."""
        raise NotImplementedError

    def fields(self, kind: LocalClass, option: str = "") -> dict[str, PythonValue]:
        """The fields of a class and their defaults: see ``python_calls.py``."""
        raise NotImplementedError

    def step(self) -> None:
        """Count one step.

        Raises:
            TooMuchError: there were too many, or values grow without end.
        """
        self.steps += 1
        if self.steps > MOST_STEPS or self.written > MOST_WRITTEN:
            raise TooMuchError

    def value(self, node: ast.expr | None) -> PythonValue:
        """What an expression gives."""
        if node is None:
            return PythonValue(None, Location(self.code.path, self.at(ast.Pass()).span))
        self.step()
        self.depth += 1
        try:
            if self.depth > DEEPEST:
                return self.unknown(node, "an expression inside too many others")
            found = getattr(self, f"_of_{type(node).__name__.lower()}", None)
            value: PythonValue = found(node) if found is not None else self.unknown(node)
        finally:
            self.depth -= 1
        if isinstance(value.of, (list, dict)):
            count = parts(value.of)
            self.written += count
            return value if count <= LONGEST else self.unknown(node, "a value that is too large")
        self.written += len(value.of) if isinstance(value.of, str) else 0
        return value

    def _of_constant(self, node: ast.Constant) -> PythonValue:
        known = isinstance(node.value, (str, int, float, bool, type(None)))
        return PythonValue(bounded(node.value) if known else UNKNOWN, self.at(node))

    def _of_name(self, node: ast.Name) -> PythonValue:
        found = self.scope.find(node.id)
        if found is not None:
            return found
        if node.id in _BUILTIN:
            return PythonValue(ImportedName(node.id), self.at(node))
        if node.id in ("__name__", "__file__"):
            return PythonValue("__main__" if node.id == "__name__" else self.cell.path, self.at(node))
        stated = self.defines.get(node.id)
        if self.starred and stated is None and (node.id in _STARRED or _CLASS.match(node.id)):
            return PythonValue(ImportedName(f"{self.starred}.{node.id}"), self.at(node))
        return self.unknown(node) if stated is None else PythonValue(stated_value(stated), self.at(node))

    def _of_attribute(self, node: ast.Attribute) -> PythonValue:
        owner = self.value(node.value)
        if isinstance(owner.of, ImportedName):
            path = f"{owner.of.path}.{node.attr}"
            if path == ARGV:
                return self.argv(node)
            return PythonValue("/" if path in ("os.sep", "os.path.sep") else ImportedName(path), self.at(node))
        if isinstance(owner.of, (MadeObject, LocalClass)):
            return self._member(owner.of, node)
        if isinstance(owner.of, dict) and node.attr in owner.of:
            element: PythonValue = owner.of[node.attr]
            return element
        if isinstance(owner.of, str) and node.attr in ("parent", "parents"):
            above = [owner]
            for _ in range(MOST_ABOVE):
                above.append(owner._replace(of=parent_of(above[-1].of)))
            return above[1] if node.attr == "parent" else owner._replace(of=above[1:])
        return self.unknown(node, owner.why if not owner.known else "", option=owner.option)

    def _member(self, owner: MadeObject | LocalClass, node: ast.Attribute) -> PythonValue:
        """A field or a method of an object or of a class; a property's value."""
        found = owner.get(node.attr) if isinstance(owner, MadeObject) else None
        if found is not None:
            return found
        method = self.method_of(owner.kind if isinstance(owner, MadeObject) else owner, node.attr, owner)
        if method is not None and isinstance(owner, MadeObject) and decorated(method) & PROPERTIES:
            return self.call(method, [], {}, node)
        if method is not None:
            return PythonValue(method, self.at(node))
        if isinstance(owner, LocalClass):
            return self.fields(owner).get(node.attr) or self.unknown(node)
        return self.unknown(node, option=owner.open)

    def method(self, thing: MadeObject, name: str) -> LocalFunction | None:
        """The method of an object of a class of the file, its own or one that it inherits in the file."""
        return self.method_of(thing.kind, name, thing)

    def method_of(self, kind: object, name: str, owner: MadeObject | LocalClass) -> LocalFunction | None:
        """The method of a class of the file; ``owner``: what it is called on."""
        seen = 0
        while isinstance(kind, LocalClass) and seen < DEEPEST:
            seen += 1
            for each in kind.node.body:
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name:
                    return _bound(LocalFunction(node=each, scope=kind.scope, cell=kind.cell), owner)
            parents = [kind.scope.find(base) for base in kind.bases]
            kind = next((each.of for each in parents if each is not None and isinstance(each.of, LocalClass)), None)
        return None

    def _of_joinedstr(self, node: ast.JoinedStr) -> PythonValue:
        text = ""
        for each in node.values:
            part = self.value(each.value if isinstance(each, ast.FormattedValue) else each)
            found = plain(part)
            if found is None or isinstance(found, (list, dict)):
                return self.unknown(node, part.why or "a text that is put together", by_gpu=part.by_gpu)
            text += str(found)
            if len(text) > LONGEST:
                return self.unknown(node)
        return PythonValue(text, self.at(node))

    def _of_list(self, node: ast.List | ast.Tuple | ast.Set) -> PythonValue:
        found: list[PythonValue] = []
        for each in node.elts[:LONGEST]:
            if isinstance(each, ast.Starred):
                inner = self.value(each.value)
                if not isinstance(inner.of, list):
                    return self.unknown(node, inner.why)
                found += inner.of
            else:
                found.append(self.value(each))
        return PythonValue(bounded(found), self.at(node))

    _of_tuple = _of_set = _of_list

    def _of_dict(self, node: ast.Dict) -> PythonValue:
        found: dict[object, PythonValue] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self.value(value)
            if key is None:
                if not isinstance(inner.of, dict):
                    return self.unknown(node, inner.why)
                found.update(inner.of)
                continue
            name = plain(self.value(key))
            if isinstance(name, (str, int, float, bool)):
                found[name] = inner
        return PythonValue(bounded(found), self.at(node))

    def _of_binop(self, node: ast.BinOp) -> PythonValue:
        return self.combine(node, self.value(node.left), self.value(node.right), node.op)

    def combine(self, node: ast.AST, one: PythonValue, other: PythonValue, operator: ast.operator) -> PythonValue:
        """``one operator other``; unknown where one of them is."""
        left = next((each for each in (one, other) if not each.known), None)
        by_gpu, option = one.by_gpu or other.by_gpu, one.option or other.option
        if left is not None:
            return self.unknown(node, left.why, by_gpu=by_gpu, option=option)
        found = combined(one.of, other.of, operator)
        return PythonValue(
            found, self.at(node), option=option, by_gpu=by_gpu, why="" if found is not UNKNOWN else named(node)
        )

    def _of_unaryop(self, node: ast.UnaryOp) -> PythonValue:
        inner = self.value(node.operand)
        if not inner.known:
            return inner._replace(at=self.at(node))
        if isinstance(node.op, ast.Not):
            return inner._replace(of=not truth(inner), at=self.at(node))
        if isinstance(node.op, ast.USub) and isinstance(inner.of, (int, float)):
            return inner._replace(of=-inner.of, at=self.at(node))
        return self.unknown(node)

    def _of_boolop(self, node: ast.BoolOp) -> PythonValue:
        any_of, open_still, option = isinstance(node.op, ast.Or), None, ""
        found = self.value(None)
        for each in node.values:
            found = self.value(each)
            option = option or found.option
            if not found.known:
                open_still = open_still or found
            elif truth(found) is any_of:
                break
        if open_still is None or (any_of and open_still.why.endswith(UNSET) and found.known):
            return found._replace(option=option)  # a variable of the environment that nobody states is not set
        return open_still._replace(at=self.at(node))

    def _of_compare(self, node: ast.Compare) -> PythonValue:
        one = self.value(node.left)
        by_gpu, option = one.by_gpu, one.option
        for operator, right in zip(node.ops, node.comparators, strict=True):
            other = self.value(right)
            by_gpu, option = by_gpu or other.by_gpu, option or other.option
            if (
                isinstance(operator, (ast.In, ast.NotIn))
                and isinstance(other.of, MadeObject)
                and other.of.name == NAMES
            ):
                taken = other.of.get(str(plain(one)))
                if taken is None:
                    return self.unknown(node, other.why)
                return taken._replace(of=taken.of is isinstance(operator, ast.In), at=self.at(node))
            left = next((each for each in (one, other) if not is_whole(each)), None)
            if left is not None:
                return self.unknown(node, left.why, by_gpu=by_gpu, option=option)
            sides = [each.of if isinstance(each.of, MadeObject) else plain(each) for each in (one, other)]
            found = compared(sides[0], sides[1], operator)
            if found is UNKNOWN or not found:
                return PythonValue(found, self.at(node), by_gpu=by_gpu, option=option)
            one = other
        return PythonValue(True, self.at(node), by_gpu=by_gpu, option=option)

    def _of_ifexp(self, node: ast.IfExp) -> PythonValue:
        test = self.value(node.test)
        if test.known:
            found = self.value(node.body if truth(test) else node.orelse)
            return found._replace(by_gpu=found.by_gpu or test.by_gpu, option=found.option or test.option)
        one, other = self.value(node.body), self.value(node.orelse)
        return joined(one, other, self.unknown(node, test.why, by_gpu=test.by_gpu, option=test.option))

    def _of_namedexpr(self, node: ast.NamedExpr) -> PythonValue:
        value = self.value(node.value)
        self.assign(node.target, value)
        return value

    def _of_subscript(self, node: ast.Subscript) -> PythonValue:
        owner = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            self._cut(node, node.slice)
            return self.unknown(node, owner.why)
        index = self.value(node.slice)
        key, found = plain(index), owner.of
        if isinstance(found, dict) and isinstance(key, (str, int, float, bool)) and key in found:
            inner: PythonValue = found[key]
            return inner._replace(option=inner.option or index.option or owner.option)
        if isinstance(found, list) and isinstance(key, int) and -len(found) <= key < len(found):
            element: PythonValue = found[key]
            return element._replace(by_gpu=element.by_gpu or owner.by_gpu)
        if isinstance(found, ImportedName) and found.path == "os.environ" and isinstance(key, str):
            stated = self.defines.get(key)
            if stated is not None:
                return PythonValue(stated_value(stated), self.at(node))
            return self.main.names.get(f"os.environ[{key}]") or self.unknown(node, f"`{key}` of the environment")
        return self.unknown(node, owner.why if not owner.known else "", by_gpu=owner.by_gpu, option=owner.option)

    def _cut(self, node: ast.Subscript, cut: ast.Slice) -> None:
        """Take down the length at which a function that makes a row cuts its tokens: ``input_ids[:max_length]``."""
        length = self.value(cut.upper) if cut.upper is not None and cut.lower is None and cut.step is None else None
        if length is None or not self.rows or not re.search("ids|token", named(node.value)):
            return
        if not length.known or (type(length.of) is int and length.of >= SHORTEST_ROW):
            self.things.append(MadeObject("rows", [length], {}, self.at(node)))

    def _of_await(self, node: ast.Await) -> PythonValue:
        return self.value(node.value)

    def _of_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> PythonValue:
        found = self._comprised(node, node.generators, lambda: self.value(node.elt))
        return self.unknown(node) if found is None else PythonValue(bounded(found), self.at(node))

    _of_setcomp = _of_generatorexp = _of_listcomp

    def _of_dictcomp(self, node: ast.DictComp) -> PythonValue:
        pairs = self._comprised(node, node.generators, lambda: (plain(self.value(node.key)), self.value(node.value)))
        if pairs is None or not all(isinstance(key, (str, int)) for key, _ in pairs):
            return self.unknown(node)
        return PythonValue(bounded(dict(pairs)), self.at(node))

    def _comprised(
        self, node: ast.AST, loops: list[ast.comprehension], element: Callable[[], _Made]
    ) -> list[_Made] | None:
        """The elements of a comprehension over one known list; None for any other."""
        over = self.value(loops[0].iter)
        if len(loops) > 1 or not isinstance(over.of, list) or len(over.of) > MOST_COMPRISED:
            return None
        found: list[_Made] = []
        before, self.scope = self.scope, LocalNames(self.scope)
        try:
            for each in over.of:
                self.assign(loops[0].target, each)
                tests = [self.value(test) for test in loops[0].ifs]
                if not all(test.known for test in tests):
                    return None
                if all(map(truth, tests)):
                    found.append(element())
        finally:
            self.scope = before
        return found

    def _of_lambda(self, node: ast.Lambda) -> PythonValue:
        return PythonValue(LocalFunction(node, self.scope, self.cell), self.at(node))

    def _of_call(self, node: ast.Call) -> PythonValue:
        self.called.add(id(node))
        arguments: list[PythonValue] = []
        for each in node.args:
            inner = self.value(each.value if isinstance(each, ast.Starred) else each)
            if isinstance(each, ast.Starred) and isinstance(inner.of, list):
                arguments += inner.of
            else:
                arguments.append(inner)
        keywords: dict[str, PythonValue] = {}
        for keyword in node.keywords:
            inner = self.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = inner
            elif isinstance(inner.of, dict):
                keywords.update((str(key), value) for key, value in inner.of.items())
            else:
                keywords[f"**{inner.why or named(keyword.value)}"] = inner._replace(of=UNKNOWN)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if not isinstance(owner.of, (ImportedName, LocalClass)):
                method = self.method(owner.of, node.func.attr) if isinstance(owner.of, MadeObject) else None
                if method is not None:
                    return self.call(method, arguments, keywords, node)
                at = self.at(node)
                found = self.library(
                    self,
                    LibraryCall(
                        node=node,
                        at=at,
                        owner=owner,
                        path="",
                        name=node.func.attr,
                        arguments=arguments,
                        keywords=keywords,
                    ),
                )
                return self.unknown(node, owner.why) if found is None else found
            if isinstance(owner.of, LocalClass) and node.func.attr in VALIDATES:
                said = arguments[0].of if arguments and isinstance(arguments[0].of, dict) else keywords
                return self.made(owner.of, [], {str(name): each for name, each in said.items()}, node)
        callee = self.value(node.func)
        if isinstance(callee.of, LocalFunction):
            return self.call(callee.of, arguments, keywords, node)
        if isinstance(callee.of, LocalClass):
            return self.made(callee.of, arguments, keywords, node)
        if isinstance(callee.of, ImportedName) and callee.of.path in _BUILTIN and callee.of.path != "open":
            return self._builtin(callee.of.path, arguments, keywords, node)
        path = callee.of.path if isinstance(callee.of, ImportedName) else ""
        call = self.library_call(path, arguments, keywords, node)
        found = self.library(self, call._replace(name=callee.of.name) if isinstance(callee.of, MadeObject) else call)
        return self.unknown(node, callee.why if not callee.known else "") if found is None else found

    def library_call(
        self, path: str, arguments: list[PythonValue], keywords: dict[str, PythonValue], node: ast.Call
    ) -> LibraryCall:
        """A call of a function or class."""
        name = (path or named(node.func).strip("`")).rpartition(".")[2]
        return LibraryCall(
            node=node, at=self.at(node), owner=None, path=path, name=name, arguments=arguments, keywords=keywords
        )

    def _builtin(
        self, name: str, arguments: list[PythonValue], keywords: dict[str, PythonValue], node: ast.Call
    ) -> PythonValue:
        first = arguments[0] if arguments else None
        if name in ("getattr", "vars"):
            return self._field(name, arguments, node)
        if name == "isinstance":
            return self._instance(arguments, node)
        if name == "set" and first is not None and isinstance(first.of, MadeObject) and first.of.name == NAMES:
            return first
        if name in ("dict", "list", "tuple", "set"):
            held = {} if first is None else first.of
            known = isinstance(held, (list, dict)) and (first is not None or name == "dict")
            copied = {**held, **keywords} if isinstance(held, dict) else list(held) if known else UNKNOWN
            return PythonValue(copied if known else UNKNOWN, self.at(node), why=named(node))
        left = next((each for each in arguments if not each.known), None)
        if left is not None:
            return self.unknown(node, left.why, by_gpu=left.by_gpu, option=left.option)
        found: object = UNKNOWN
        if name in ("max", "min") and first is not None:
            listed = first.of if len(arguments) == 1 and isinstance(first.of, list) else arguments
            numbers = [each.of for each in listed if isinstance(each.of, (int, float))]
            if numbers and len(numbers) == len(listed):
                found = max(numbers) if name == "max" else min(numbers)
        elif first is not None and len(arguments) == 1:
            found = converted(name, first.of)
        by_gpu = any(each.by_gpu for each in arguments)
        option = first.option if first is not None else ""
        return PythonValue(found, self.at(node), why=named(node), by_gpu=by_gpu, option=option)

    def _field(self, name: str, arguments: list[PythonValue], node: ast.Call) -> PythonValue:
        """``getattr`` and ``vars`` of an object."""
        owner = arguments[0].of if arguments else None
        if isinstance(owner, MadeObject) and name == "vars":
            return PythonValue(owner.keywords, self.at(node))
        field = plain(arguments[1]) if len(arguments) > 1 else None
        if isinstance(owner, ImportedName) and isinstance(field, str):
            return arguments[1]._replace(of=ImportedName(f"{owner.path}.{field}"))
        said = owner.get(field) if isinstance(owner, MadeObject) and isinstance(field, str) else None
        whole = isinstance(owner, MadeObject) and not owner.open and (owner.kind is not None or owner.name in SPACES)
        left_out = arguments[2] if whole and len(arguments) > 2 and isinstance(field, str) else None
        return said or left_out or self.unknown(node)

    def _instance(self, arguments: list[PythonValue], node: ast.Call) -> PythonValue:
        """``isinstance`` of a constant, a list or a mapping, and the names of types of Python."""
        if len(arguments) != 2 or not arguments[0].known:
            left = arguments[0] if arguments else PythonValue(UNKNOWN, self.at(node))
            return self.unknown(node, left.why, by_gpu=left.by_gpu, option=left.option)
        value, kinds = arguments[0].of, arguments[1].of
        named_kinds = [each.of for each in kinds] if isinstance(kinds, list) else [kinds]
        paths = {each.path for each in named_kinds if isinstance(each, ImportedName)}
        if (
            len(paths) < len(named_kinds)
            or not paths <= set(_KINDS)
            or not isinstance(value, (*_KINDS.values(), type(None)))
        ):
            return self.unknown(node)
        return arguments[0]._replace(of=isinstance(value, tuple(_KINDS[each] for each in paths)), at=self.at(node))


_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*\Z")
_STARRED = frozenset({"get_peft_model", "prepare_model_for_kbit_training"})
"""Functions of libraries that are known without an import of their own: after ``from peft import *``."""
_BUILTIN = frozenset(
    {"open", "int", "float", "str", "bool", "len", "round", "abs", "max", "min", "getattr", "vars", "isinstance"}
    | {"dict", "list", "tuple", "set"}
)

_KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "dict": dict}
"""Types whose instances the reader holds as what they are: a list may stand for a tuple, and a text for a path."""
