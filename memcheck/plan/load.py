"""From the bytes of a file to its YAML documents, each with values, places and what is wrong with it so far."""

from __future__ import annotations

from memcheck.edge.libyaml import yaml
from memcheck.plan.compose import Composed, ComposeError, ComposeProblem, Composer
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document, Marks
from memcheck.plan.text import decode, shown_path, split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load_documents(path: str, data: bytes) -> list[Document]:
    """Return every YAML document of a file, in order. Empty documents are left out but counted.

    Never raises for bad input: what cannot be read becomes a document whose ``values`` are None and whose
    findings say why. Reads other files only for ``extends``.
    """
    path = shown_path(path)
    text, finding = decode(path, data)
    lines = split_lines(text)
    if finding is not None:
        return [_unreadable(path, 0, lines, finding)]
    documents: list[Document] = []
    composer = Composer(text).documents()
    inherited = Inherited()
    index = -1
    while True:
        index += 1
        try:
            composed = next(composer, None)
        except (ComposeError, yaml.YAMLError) as error:
            documents.append(_unreadable(path, index, lines, syntax_finding(path, text, lines, error)))
            return documents
        if composed is None:
            return documents
        if composed.values is not None:
            documents.append(_document(path, index, lines, composed, inherited))


class Inherited:
    """How many values the documents of one file have taken from those that they extend."""

    def __init__(self) -> None:
        self.count = 0


def _document(path: str, index: int, lines: tuple[str, ...], composed: Composed, inherited: Inherited) -> Document:
    """Return the document with everything that it extends."""
    values = composed.values
    if isinstance(values, dict) and "extends" in values:
        from memcheck.plan.extends import extended

        return extended(path, index, lines, composed, inherited)
    sources = {path: lines}
    marks = Marks(path, composed.root, sources)
    findings = tuple(locate(problem, marks) for problem in composed.problems)
    return Document(
        path=path,
        index=index,
        values=values,
        marks=marks,
        sources=sources,
        findings=findings,
        odd=composed.odd,
        lines=composed.lines,
    )


def locate(problem: ComposeProblem, marks: Marks) -> Finding:
    """Return a problem of composing, as a finding."""
    related = tuple((label, marks.at(event)) for label, event in problem.related)
    return problem.code.at(marks.at(problem.event), problem.message, help=problem.help, related=related)


def syntax_finding(path: str, text: str, lines: tuple[str, ...], error: Any) -> Finding:
    """Return the finding for a document that could not be composed."""
    if isinstance(error, ComposeError):
        return locate(error.problem, Marks(path, None, {path: lines}))
    from memcheck.plan.syntax import explain

    return explain(path, text, error)


def _unreadable(path: str, index: int, lines: tuple[str, ...], finding: Finding) -> Document:
    """Return a document without values, with the finding that says why."""
    sources = {path: lines}
    return Document(
        path=path, index=index, values=None, marks=Marks(path, None, sources), sources=sources, findings=(finding,)
    )
