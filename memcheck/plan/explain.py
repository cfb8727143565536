"""Why a document does not conform to the schema: the jsonschema library's errors as located findings.

Imported only for a document that already failed; jsonschema costs ten times a whole clean check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsonschema import Draft7Validator

from memcheck.plan import finding as codes
from memcheck.plan.finding import Edit, Finding, Location
from memcheck.plan.foreign import renamed, rewritten
from memcheck.plan.mend import described, mend, misspelled, unknown_key
from memcheck.plan.places import Document, pointer_of
from memcheck.plan.schema import (
    Schema,
    branch,
    branches,
    flow,
    has_type,
    is_type,
    key_path,
    listed,
    resolved,
    schema_at,
    shorten,
    text_at,
    value_at,
)


def explain(document: Document, schema: Schema) -> list[Finding]:
    """Return every finding about a document that does not conform, in the order of the text."""
    values = document.values
    if not isinstance(values, dict):
        message = f"a plan is a mapping, and this document is {found(values, '')}"
        return [codes.INVALID_PLAN.at(document.locate(""), message, help="start it with `memcheck: 1`")]
    if "memcheck" not in values and not {"model", "hardware"} <= values.keys():
        message = "this document has no `memcheck: 1`, the mark of a plan"
        return [codes.INVALID_PLAN.at(document.locate(""), message, help="`memcheck init` writes a first plan")]
    version = values.get("memcheck", 1)
    if is_type("number", version) and version != 1:
        message = f"the plan is written in format `{version}`, and this memcheck reads format `1`"
        at, help = document.locate("/memcheck"), "upgrade memcheck, or write `memcheck: 1`"
        return [codes.INVALID_VALUE.at(at, message, help=help, pointer="/memcheck")]
    explainer = _Explainer(document, schema)
    for error in Draft7Validator(schema).iter_errors(values):
        explainer.add(error)
    return sorted(explainer.findings, key=lambda each: (each.location.path != document.path, each.location.span))


OF_AN_ENGINE = ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager")
"""Keys that only a plan with a serving engine has."""


class _Explainer:
    def __init__(self, document: Document, root: Schema) -> None:
        self._document = document
        self._root = root
        self._seen: set[tuple[str, str]] = set()
        self._misspelled: dict[str, set[str]] = {}
        values = document.values if isinstance(document.values, dict) else {}
        self._serving = "inference" in values and "training" not in values
        self.findings: list[Finding] = []

    def add(self, error: Any) -> None:
        """Turn one error of the library, which may stand for several findings, into findings."""
        tokens = [str(token) for token in error.absolute_path]
        handler = _HANDLERS.get(error.validator)
        if handler is not None:
            handler(self, error, tokens)
        else:
            self._wrong(tokens, error.instance, error.schema)

    def _report(
        self, code: codes.Code, tokens: list[str], message: str, at: Location | None = None, **more: Any
    ) -> None:
        pointer = pointer_of(tokens)
        if (pointer, message) not in self._seen:
            self._seen.add((pointer, message))
            where = self._document.locate(pointer) if at is None else at
            mark = self._document.marks.get(pointer)
            if mark is not None and mark.used_at is not None and mark.used_at.path == where.path:
                more["related"] = (*more.get("related", ()), ("used here", mark.used_at))
            self.findings.append(code.at(where, message, pointer=pointer, **more))

    def _unknown(self, error: Any, tokens: list[str]) -> None:
        names = error.schema["properties"]
        for key in error.instance:
            if key not in names and not self._renamed(tokens, key, error.instance):
                at = self._key_location([*tokens, key])
                message = f"{key_path(tokens)} has no key `{key}`"
                help, better = unknown_key(key, tokens, error.instance, error.schema, serving=self._serving)
                fix = (Edit(at.span, better),) if better and self._is_own(at) else ()
                self._report(codes.UNKNOWN_KEY, [*tokens, key], message, at, help=help, fix=fix)

    def _renamed(self, tokens: list[str], key: str, mapping: dict[str, Any]) -> bool:
        """Report a key under another tool's name, with both edits if its value has an equal, too."""
        entry = renamed(".".join(tokens), key)
        mark = self._document.marks.get(pointer_of([*tokens, key]))
        if entry is None or mark is None or mark.key is None:
            return False
        text = text_at(self._document, mark.value)
        value = None if isinstance(mapping[key], (dict, list)) and entry.values else rewritten(entry, text)
        taken = [other for other in mapping if other == entry.new or _new(tokens, other) == entry.new]
        message = f"{key_path(tokens)} has no key `{key}`, which is what {entry.origin} calls `{entry.new}`"
        if value is None:
            help = f"write `{entry.new}`, which has a value for {listed(entry.values, 'and')} only"
        else:
            help = f"write `{entry.new}`" if value == text else f"write `{entry.new}: {value}`"
        own = value is not None and taken == [key] and self._is_own(mark.key) and self._is_own(mark.value)
        fix = (Edit(mark.key.span, entry.new),) if own else ()
        if own and value != text:
            fix = (*fix, Edit(mark.value.span, value or ""))
        self._report(codes.RENAMED_KEY, [*tokens, key], message, mark.key, help=help, fix=fix)
        return True

    def _missing(self, error: Any, tokens: list[str]) -> None:
        properties = self._properties(tokens)
        for name in error.validator_value:
            if name not in error.instance and name not in self._meant(error.instance, tokens, properties):
                example = (properties.get(name) or {}).get("examples", [""])[0]
                written = f": {example}" if isinstance(example, (str, int, float)) and example != "" else ""
                message = f"{key_path(tokens)} needs `{name}`"
                help = f"add `{name}{written}`"
                if tokens == ["inference"] and any(key in error.instance for key in OF_AN_ENGINE):
                    help += ", or `engine: vllm`, whose keys the plan has"
                self._report(codes.MISSING_KEY, tokens, message, help=help)

    def _one_of(self, error: Any, tokens: list[str]) -> None:
        """Return exactly one of some keys."""
        names = [name for each in error.validator_value for name in each["required"]]
        present = [name for name in names if name in error.instance]
        if len(present) > 1:
            self._conflict(tokens, present)
        elif not self._meant(error.instance, tokens, self._properties(tokens)) & set(names):
            help = described(error.instance) if tokens == ["model"] else ""
            self._report(codes.MISSING_KEY, tokens, f"{key_path(tokens)} needs one of {listed(names)}", help=help)

    def _not(self, error: Any, tokens: list[str]) -> None:
        """Return keys that exclude each other."""
        if not isinstance(error.instance, dict):
            return  # its type is wrong, which is reported
        names = error.validator_value.get("required")
        if names is None:  # `overrides` together with one of several keys
            others = (each["required"][0] for each in error.validator_value["anyOf"])
            names = [next(name for name in others if name in error.instance), "overrides"]
        self._conflict(tokens, names)

    def _conflict(self, tokens: list[str], names: list[str]) -> None:
        at = [self._key_location([*tokens, name]) for name in names]
        message = f"{key_path(tokens)} takes only one of {listed(names, 'and')}"
        related = tuple((f"`{name}` is set here", where) for name, where in zip(names[:-1], at[:-1], strict=True))
        help = "remove one of them"
        self._report(codes.CONFLICTING_KEYS, [*tokens, names[-1]], message, at[-1], help=help, related=related)

    def _any_of(self, error: Any, tokens: list[str]) -> None:
        """Report a union by the one branch that the value's type chooses."""
        if isinstance(error.instance, (dict, list)):
            for number, schema in enumerate(error.validator_value):
                if all(has_type(each, error.instance) for each in branches(schema, self._root)):
                    for inner in error.context:
                        if inner.schema_path[0] == number:
                            self.add(inner)
                    return
        self._wrong(tokens, error.instance, error.schema)

    def _empty(self, error: Any, tokens: list[str]) -> None:
        example = error.schema.get("examples", [None])[0]
        help = f"for example `{flow(example)}`" if example is not None else "remove the key, or fill it"
        self._report(codes.INVALID_VALUE, tokens, f"{key_path(tokens)} is empty", help=help)

    def _wrong(self, tokens: list[str], value: object, schema: Schema) -> None:
        """Return a value that does not fit its schema; everything wrong with one value is one finding."""
        pointer = pointer_of(tokens)
        if (pointer, "") in self._seen:
            return
        self._seen.add((pointer, ""))
        whole = schema  # the union rather than one branch of it; but a condition says more than what it is a part of
        if "type" in schema or "const" in schema or "anyOf" in schema:
            whole = resolved(schema_at(self._document.values, tokens, self._root) or schema, self._root)
        mark = None if self._document.is_changed(pointer) else self._document.marks.get(pointer)
        text = "" if mark is None or isinstance(value, (dict, list)) else text_at(self._document, mark.value)
        mended = mend(value, text, whole, self._root)
        message = f"{key_path(tokens)} must be {expected(whole, value, self._root)}"
        if (value is None and not text) or value == "":
            message = f"{message}, but it is empty"
        else:
            message = f"{message}, {mended.why or f'not {found(value, text)}'}"
        help = mended.help or _example(value, whole, self._root)
        own = mark is not None and mended.text != "" and self._is_own(mark.value)
        fix = (Edit(mark.value.span, mended.text),) if mark is not None and own else ()
        self._report(mended.code, tokens, message, help=help, fix=fix)

    def _properties(self, tokens: list[str]) -> Schema:
        """Return what the mapping at a place may have."""
        values = self._document.values
        schema = branch(schema_at(values, tokens, self._root), value_at(values, tokens), self._root)
        found: Schema = (schema or {}).get("properties", {})
        return found

    def _meant(self, mapping: dict[str, Any], tokens: list[str], properties: Schema) -> set[str]:
        """Keys that are not missing but misspelled, which is reported as such."""
        pointer = pointer_of(tokens)
        if pointer not in self._misspelled:
            unknown = (key for key in mapping if key not in properties)
            self._misspelled[pointer] = {misspelled(key, tokens, properties) for key in unknown}
        return self._misspelled[pointer]

    def _key_location(self, tokens: list[str]) -> Location:
        mark = self._document.marks.get(pointer_of(tokens))
        if mark is None:
            return self._document.locate(pointer_of(tokens))
        return mark.key or mark.value

    def _is_own(self, at: Location) -> bool:
        """Whether an edit at this place changes this file; one of a base is for the base's own check."""
        return at.path == self._document.path


def _new(tokens: list[str], key: str) -> str:
    """Return the plan's name of a key under another tool's name."""
    entry = renamed(".".join(tokens), key)
    return entry.new if entry is not None else ""


def _example(value: object, schema: Schema, root: Schema) -> str:
    """Return an example, where the shape of the value is wrong or it is missing."""
    options = branches(schema, root)
    if value is None or not any(has_type(each, value) for each in options):
        for example in schema.get("examples") or options[0].get("examples") or ():
            return f"for example `{flow(example)}`"
    return ""


_HANDLERS: dict[str, Callable[[_Explainer, Any, list[str]], None]] = {
    "additionalProperties": _Explainer._unknown,  # noqa: SLF001
    "required": _Explainer._missing,  # noqa: SLF001
    "oneOf": _Explainer._one_of,  # noqa: SLF001
    "not": _Explainer._not,  # noqa: SLF001
    "anyOf": _Explainer._any_of,  # noqa: SLF001
    "minProperties": _Explainer._empty,  # noqa: SLF001
    "minItems": _Explainer._empty,  # noqa: SLF001
}
"""What an error of each keyword stands for; every other keyword is about the value alone."""


_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "`true` or `false`",
    "number": "a number",
    "integer": "a whole number",
}


def expected(schema: Schema, value: object, root: Schema) -> str:
    """Return what a schema takes instead of ``value``, as the text that follows ``must be``.

    Of a union, the branches that take a scalar when the value is one, else the branch of the value's type.
    """
    union = branches(schema, root)
    if isinstance(value, (dict, list)):
        options = [each for each in union if has_type(each, value)]
    else:
        options = [each for each in union if each.get("type") not in {"object", "array"}]
    options = options or union
    alone = len(options) == 1
    return " or ".join(_expected(each, value, titled=len(union) > 1, alone=alone) for each in options)


def _expected(schema: Schema, value: object, *, titled: bool, alone: bool) -> str:
    """Say what a schema takes: its words, its title, or its type and bounds."""
    if "const" in schema:
        return f"`{schema['const']}`"
    names = schema.get("enum")
    if names is not None and (alone or len(names) == 1):
        return f"one of {listed(names)}" if len(names) > 1 else listed(names)
    if "title" in schema and (titled or "type" not in schema):
        return str(schema["title"])
    return _TYPES[schema["type"]] + _bounds(schema, value)


def _bounds(schema: Schema, value: object) -> str:
    """Say the bounds of a number, as far as the ``value`` makes them worth reading."""
    least, above, most = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if most is not None and isinstance(value, (int, float)) and value > most >= 1000:
        return f" of at most {most}"
    if above is not None:
        return f" above {above}"
    if least is None:
        return ""
    # An upper bound that only keeps out nonsense is not worth a reader's time until it is met.
    return f" from {least} to {most}" if most is not None and most < 1000 else f" of at least {least}"


def found(value: object, text: str) -> str:
    """Return a value, as the text that follows ``not`` in a message. ``text``: the value as it is written."""
    shown = f"`{shorten(text)}`"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None:
        return shown if text else "nothing"
    if isinstance(value, bool):
        return f"the boolean {shown}" if text else "a boolean"
    if isinstance(value, str):
        return f"the text {shown}" if text else f"the text `{shorten(value)}`"
    written = text[:1] in "+-.*0123456789" if text else False  # in a framework's config the mark may be on the key
    return f"the number {shown}" if written else f"the number `{value}`"
