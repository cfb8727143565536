"""``extends``: a plan deep-merged over another one of the same repository."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from memcheck.edge.libyaml import yaml
from memcheck.edge.opener import exists, is_file, real_path, repository
from memcheck.plan import finding as codes
from memcheck.plan.compose import MAX_REPEATED, Composed, ComposeError, Composer
from memcheck.plan.finding import Finding, Location
from memcheck.plan.places import Collection, Document, Entry, Marks, Via
from memcheck.plan.read import Inherited, locate, syntax_finding
from memcheck.plan.text import decode, read_bytes, shown_path, split_lines

MAX_CHAIN = 16

_PATH_KEYS = (("model", ("config",)), ("source", None))
"""Where a plan names other files, relative to the file it is written in; None: every key of the mapping."""


class _BrokenError(Exception):
    """``extends`` leads nowhere; the location is that of its value."""

    def __init__(self, at: Location, message: str, help: str, related: tuple[tuple[str, Location], ...] = ()) -> None:
        super().__init__(message)
        self.finding = codes.BROKEN_EXTENDS.at(at, message, help=help, pointer="/extends", related=related)


class _Reader:
    """Follows ``extends`` from one file to the next, and remembers what it read."""

    def __init__(self, path: str, lines: tuple[str, ...], inherited: Inherited) -> None:
        self.inherited = inherited
        self.sources = {path: lines}
        self.findings: list[Finding] = []
        self.odd = False
        self.folder = real_path(os.path.dirname(path) or ".")
        self.root, self.in_git = repository(self.folder)
        self.chain = [(real_path(path), path)]

    def resolve(self, path: str, composed: Composed) -> tuple[dict[str, Any], Collection]:
        """Return values and places of one file, over those of what it extends."""
        marks = Marks(path, composed.root, self.sources)
        self.findings += [locate(problem, marks) for problem in composed.problems]
        self.odd |= composed.odd
        values: Any = composed.values
        name = values.get("extends")
        if not isinstance(name, str) or not name:
            return values, composed.root  # nothing to extend, or the plan's schema says what is wrong with it
        at = marks["/extends"].value
        target = self._target(path, name, at)
        base = self._compose(target, name, at)
        base_values, base_root = self.resolve(target, base)
        base_values = _rebased(base_values, target, path)
        use = composed.root.items["extends"][1]
        return _join(values, composed.root, base_values, base_root, Via(target, use, ""))

    def _target(self, path: str, name: str, at: Location) -> str:
        if os.path.isabs(name) or "://" in name:
            raise _BrokenError(at, f"`{name}` is not a relative path", "name a file relative to this one")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name))
        real = real_path(target)
        if os.path.commonpath((self.root, real)) != self.root:
            limit = "the repository" if self.in_git else "the plan's folder, which is in no git repository"
            raise _BrokenError(at, f"`{name}` lies outside {limit}", "keep the plans that belong together in one place")
        known = [seen for seen, _ in self.chain]
        if real in known:
            names = [shown for _, shown in self.chain[known.index(real) :]]
            circle = " -> ".join([*names, names[0]])
            raise _BrokenError(at, f"the plan extends itself: {circle}", "let one of them stand alone")
        if len(self.chain) >= MAX_CHAIN:
            raise _BrokenError(at, f"more than {MAX_CHAIN} plans extend each other", "join some of them")
        if not is_file(real):
            reason = "is not a file" if exists(real) else "does not exist"
            raise _BrokenError(at, f"`{name}` {reason}", f"the path is relative to `{shown_path(path)}`")
        self.chain.append((real, shown_path(target)))
        return shown_path(target)

    def _compose(self, target: str, name: str, at: Location) -> Composed:
        try:
            data = read_bytes(target)
        except OSError as error:
            raise _BrokenError(at, f"`{name}` cannot be read: {error.strerror}", "mind its permissions") from error
        self.sources[target], documents, finding = _composed(target, data)
        if finding is not None:
            related = ((finding.message, finding.location),)
            raise _BrokenError(at, f"`{name}` cannot be read: {finding.message}", finding.help, related)
        if len(documents) != 1:
            count = f"holds {len(documents)} documents" if documents else "is empty"
            raise _BrokenError(at, f"`{name}` {count}", "a plan to extend is one document")
        if not isinstance(documents[0].values, dict):
            raise _BrokenError(at, f"`{name}` is not a mapping", "a plan to extend is a mapping like this one")
        self.inherited.count += documents[0].size
        if self.inherited.count > MAX_REPEATED:
            message = f"the documents of this file take more than {MAX_REPEATED:,} values from those that they extend"
            raise _BrokenError(at, message, "split the file")
        return documents[0]


@lru_cache(maxsize=8)
def _composed(path: str, data: bytes) -> tuple[tuple[str, ...], tuple[Composed, ...], Finding | None]:
    """Return lines and documents of a file that is extended, and what is wrong with it: many plans extend the same
    one.
    """
    text, finding = decode(path, data)
    lines = split_lines(text)
    if finding is not None:
        return lines, (), finding
    try:
        return lines, tuple(each for each in Composer(text).documents() if each.values is not None), None
    except (ComposeError, yaml.YAMLError) as error:
        return lines, (), syntax_finding(path, text, lines, error)


def extended(path: str, index: int, lines: tuple[str, ...], composed: Composed, inherited: Inherited) -> Document:
    """Return the document with everything that it extends under it; as it stands alone, with a finding, when that
    fails.
    """
    reader = _Reader(path, lines, inherited)
    values, root = composed.values, composed.root
    try:
        values, root = reader.resolve(path, composed)
    except _BrokenError as error:
        reader.findings.append(error.finding)
    marks = Marks(path, root, reader.sources)
    return Document(
        path=path,
        index=index,
        values=values,
        marks=marks,
        sources=reader.sources,
        findings=tuple(reader.findings),
        odd=reader.odd,
        lines=composed.lines,
    )


def _join(
    values: dict[str, Any], root: Collection, base: dict[str, Any], base_root: Any, via: Via
) -> tuple[dict[str, Any], Collection]:
    """Mappings are joined key by key; anything else replaces what is under it."""
    under = {name: entry for name, entry in base_root.items.items() if name != "extends" or via.text}
    names: dict[str, Entry] = {name: _carried(entry, via) for name, entry in under.items()}
    joined: dict[str, Any] = {name: base[name] for name in under}
    own = root.items if isinstance(root.items, dict) else {}
    for name, (key, place, through) in own.items():
        value = values[name]
        if isinstance(value, dict) and isinstance(joined.get(name), dict):
            value, place = _join(value, place, joined[name], under[name][1], via)
        names[name] = (key, place, through)
        joined[name] = value
    block = Collection(root.start, names)
    block.end = root.end
    return joined, block


def _carried(entry: Entry, via: Via) -> Entry:
    """Return an entry of the base, as seen from the plan over it."""
    key, place, through = entry
    if through is None:
        return (key, place, via)
    return (key, place, through if through.path else Via(via.path, through.use, through.text))


def _rebased(values: dict[str, Any], base: str, path: str) -> dict[str, Any]:
    """Paths in the base are relative to the base's folder; the plan reads them from its own."""
    step = os.path.relpath(os.path.dirname(base) or ".", os.path.dirname(path) or ".")
    if step == ".":
        return values
    values = dict(values)
    for section, names in _PATH_KEYS:
        mapping = values.get(section)
        if isinstance(mapping, dict):
            values[section] = {
                name: shown_path(os.path.normpath(os.path.join(step, value)))
                if isinstance(value, str) and (names is None or name in names) and not os.path.isabs(value)
                else value
                for name, value in mapping.items()
            }
    return values
