"""One request in, the steps of its answer out: all that a worker, a server or an editor calls.

Every request ends with the step ``done``. Nothing that a message holds leads to an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memcheck import __version__
from memcheck.config.find import Gate
from memcheck.configs.documents import load_plans, only_plan
from memcheck.errors import MemcheckError, UsageError
from memcheck.live.answer import CheckedFile, Places, Slices, checked_file, first
from memcheck.live.choices import Choosing
from memcheck.live.form import choices, form, forms, soon
from memcheck.live.moves import moved
from memcheck.live.replies import STEPS, Choices, Done, Failed, FileChange, KeyChoice, Searching
from memcheck.live.requests import RequestError, Workspace, checked, checked_name, numbered
from memcheck.plan.places import Document
from memcheck.plan.value_edits import edited
from memcheck.record import Record
from memcheck.report.story.build import as_data

REMEMBERED = 16
"""Answers whose sections are remembered, so that what has not changed is not sent again."""
WORDS = {kind: word for word, kind in STEPS.items()}
Fields = Mapping[str, object]
Steps = Iterator[Record]
News = Callable[[str, Mapping[str, Any]], dict[str, Any]]


class Session:
    """A visit: its workspace, the plan that it is about, and what was sent of it."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = Gate() if gate is None else gate
        self.workspace = Workspace()
        self.path, self.document = "", 0
        self.last: CheckedFile | None = None
        """The last file that was checked."""
        self._sent: dict[object, Mapping[str, Mapping[str, object]]] = {}

    def handle(self, request: object) -> Iterator[dict[str, object]]:
        """The steps of an answer, each with the id of its request; the last one is ``done``.

        A step is made when it is asked for, so that a caller may stop between two of them.
        """
        number: object = None
        count = 0
        try:
            number, message = numbered(request)
            word, fields = checked(message)
            for step in self._steps(number, word, fields):
                count += 1
                yield self._message(number, step)
        except Exception as error:  # noqa: BLE001 - a failed request must not end the visit
            count += 1
            yield self._message(number, failed(error))
        yield self._message(number, Done(steps=count))

    def _message(self, number: object, step: Record) -> dict[str, object]:
        found = as_data(step)
        assert isinstance(found, dict)  # noqa: S101 - a record is a mapping
        return {"id": number, "step": WORDS[type(step)], **found}

    def _steps(self, number: object, word: str, fields: Fields) -> Steps:
        self._take(fields)
        if word in STEPS_OF:
            return STEPS_OF[word](self, number, fields)
        from memcheck.live.asked import ASKED  # what an answer does not need, a page's snapshot must not hold

        return ASKED[word](self, fields)

    def _take(self, fields: Fields) -> None:
        """The files of a request, and the plan that it is about.

        Raises:
            UsageError: a name or a text that a workspace does not take.
        """
        path, text = fields.get("path", self.path), fields.get("text")
        files: dict[str, bytes | None] = {}
        for name, each in (fields.get("files") or {}).items():  # type: ignore[attr-defined]
            files[name] = None if each is None else utf8(name, each)
        if isinstance(path, str) and path:
            checked_name(path)
            if isinstance(text, str):
                files[path] = utf8(path, text)
        elif text is not None:
            raise RequestError("a text needs the `path` of its file", "such as plan.yaml")
        self.workspace.put(files)
        document = fields.get("document", 0 if path != self.path else self.document)
        self.path, self.document = str(path), int(document)  # type: ignore[call-overload]

    def gate_of(self, fields: Fields) -> Gate:
        """How strictly to check, with the hardware that a framework's own config does not state."""
        hardware = fields.get("hardware")
        return self.gate._replace(hardware=hardware) if isinstance(hardware, dict) else self.gate

    def document_of(self, fields: Fields) -> Document:
        """The plan that a request is about.

        Raises:
            UsageError: there is no such file or plan.
        """
        gate = self.gate_of(fields)
        checked = self.last
        if checked is not None and checked.is_of(self.workspace, self.path, gate):
            found: Sequence[Document] = checked.documents
        else:
            with self.workspace.reading():
                found = load_plans(self.path, self.workspace.data(self.path), hardware=gate.hardware)
        return only_plan(self.path, list(found), self.document)

    def checked(self, fields: Fields) -> CheckedFile:
        """The file that a request is about, checked; as it was, if nothing has changed."""
        gate = self.gate_of(fields)
        if self.last is None or not self.last.is_of(self.workspace, self.path, gate):
            self.last = checked_file(self.workspace, self.path, gate)
        return self.last

    def news(self, number: object, since: object) -> News:
        """Leaves out what is as in the answer that is shown, whose number is ``since``, and remembers all of it."""
        before = self._sent.get(since, {}) if since is not None else {}
        now: dict[str, Mapping[str, object]] = {}
        self._sent[number] = now
        while len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]

        def news(part: str, all: Mapping[str, Any]) -> dict[str, Any]:
            known = before.get(part, {})
            now[part] = all
            return {name: each for name, each in all.items() if name not in known or known[name] != each}

        return news


def utf8(name: str, text: str) -> bytes:
    """The bytes of a text.

    Raises:
        UsageError: it holds half of a surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"the text of {name[:50]!r} is not Unicode: half of a pair at character {error.start + 1:,}"
        raise UsageError(message, "send the file again") from None


def failed(error: Exception) -> Failed:
    """Why a request has no answer; for a failure of memcheck itself, with a text for a bug report."""
    if isinstance(error, MemcheckError):
        kind = "request" if isinstance(error, RequestError) else "refused"
        return Failed(kind=kind, message=error.message, help=error.help, report="")
    if isinstance(error, RecursionError):
        return Failed(kind="refused", message="the values are nested too deeply", help="write fewer levels", report="")
    import traceback

    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    return Failed(
        kind="defect",
        message=f"memcheck itself failed: {type(error).__name__}",
        help="please open an issue with the report",
        report=f"memcheck {__version__}\n{trace}",
    )


def answer(session: Session, number: object, fields: Fields) -> Steps:
    """Check a plan: the verdict first, then the controls."""
    yield from _answered(session, number, fields, ())


def set_keys(session: Session, number: object, fields: Fields) -> Steps:
    """Write new values into the plan, and check it."""
    document = session.document_of(fields)
    changes = fields["changes"]
    with session.workspace.reading():
        try:
            made = moved(document, changes)  # type: ignore[arg-type]  # checked as a mapping
        except UnicodeEncodeError:
            raise UsageError("a key or a value is not Unicode: it holds half of a pair", "write it again") from None
    places = Places(session.workspace, document.sources)
    edits = tuple(places.change(each.path, each.edits) for each in made)
    session.workspace.put({each.path: edited(session.workspace.data(each.path), each.edits) for each in made})
    yield from _answered(session, number, fields, edits)


def _answered(session: Session, number: object, fields: Fields, edits: tuple[FileChange, ...]) -> Steps:
    gate = session.gate_of(fields)
    checked = session.checked(fields)
    found = first(session.workspace, checked, session.document, edits)
    news = session.news(number, fields.get("since"))
    yield found._replace(sections=news("sections", found.sections))
    document = checked.document(session.document)
    if document is None or not isinstance(document.values, dict):
        return
    made = form(document, checked.plan(session.document), Places(session.workspace).of(session.path))
    yield made._replace(fields=news("fields", made.fields))
    chosen: dict[str, tuple[KeyChoice, ...]] = {}
    slices = Slices()
    for key, values in session.workspace.while_reading(soon(made, Choosing(document, gate))):
        chosen[key] = values
        if slices.is_due:
            yield Searching(part="choices", tried=len(chosen), fits=0)
    yield Choices(choices=news("choices", chosen))


def more(session: Session, number: object, fields: Fields) -> Steps:
    """Search for what takes longer than a verdict."""
    from memcheck.live.searches import PARTS, Asking  # as little as ``asked``

    checked = session.checked(fields)
    plan, document = checked.plan(session.document), checked.document(session.document)
    if plan.estimate is None or document is None:
        return
    asking = Asking(workspace=session.workspace, checked=checked, document=document, gate=session.gate_of(fields))
    wanted = fields.get("steps") or tuple(PARTS)
    for part in dict.fromkeys(wanted):  # type: ignore[call-overload]  # checked as a list
        yield from PARTS[part](asking)


def choices_of(session: Session, number: object, fields: Fields) -> Steps:
    """The values that some keys of a plan could have."""
    document = session.document_of(fields)
    with session.workspace.reading():
        choosing = Choosing(document, session.gate_of(fields))
        found = {key: choices(key, choosing) for key in fields["keys"] if key in forms()}  # type: ignore[attr-defined]
    yield Choices(choices=found)


STEPS_OF: Mapping[str, Callable[[Session, object, Fields], Steps]] = {
    "answer": answer,
    "set": set_keys,
    "more": more,
    "choices": choices_of,
}
"""What answers the requests that every visit makes."""

_session: Session | None = None


def handle(request: object) -> Iterator[dict[str, object]]:
    """The steps of the answer to a request of this process's one visit; see :meth:`Session.handle`."""
    global _session  # noqa: PLW0603 - a worker has one page
    if _session is None:
        _session = Session()
    return _session.handle(request)
