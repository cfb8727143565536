"""One request in, the steps of its answer out: all that a worker, a server or an editor calls.

Every request ends with the step ``done``. Nothing that a message holds leads to an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from memcheck import __version__
from memcheck.config.gate import Gate
from memcheck.errors import MemcheckError, UsageError
from memcheck.live.answer import checked_file, first
from memcheck.live.replies import STEPS, Done, Failed
from memcheck.live.requests import RequestError, checked, numbered
from memcheck.live.workspace import Workspace, checked_name
from memcheck.record import Record
from memcheck.report.story.build import as_data

REMEMBERED = 8
"""Answers whose sections are remembered, so that what has not changed is not sent again."""
WORDS = {kind: word for word, kind in STEPS.items()}
Fields = Mapping[str, object]
Steps = Iterator[Record]


class Session:
    """A visit: its workspace, the plan that it is about, and what was sent of it."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = Gate() if gate is None else gate
        self.workspace = Workspace()
        self.path, self.document = "", 0
        self._sent: dict[object, Mapping[str, str]] = {}

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
        return STEPS_OF[word](self, number, fields)

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

    def unsent(self, number: object, since: object, sections: Mapping[str, str]) -> dict[str, str]:
        """The sections that differ from those of the answer that is shown; all of them are remembered."""
        before = self._sent.get(since, {}) if since is not None else {}
        self._sent[number] = sections
        while len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return {name: html for name, html in sections.items() if before.get(name) != html}


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
    import traceback

    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    return Failed(
        kind="defect",
        message=f"memcheck itself failed: {type(error).__name__}",
        help="please open an issue with the report",
        report=f"memcheck {__version__}\n{trace}",
    )


def answer(session: Session, number: object, fields: Fields) -> Steps:
    """Check a plan."""
    found = first(
        session.workspace, checked_file(session.workspace, session.path, session.gate_of(fields)), session.document
    )
    yield found._replace(sections=session.unsent(number, fields.get("since"), found.sections))


STEPS_OF: Mapping[str, Callable[[Session, object, Fields], Steps]] = {"answer": answer}
"""What answers each request."""

_session: Session | None = None


def handle(request: object) -> Iterator[dict[str, object]]:
    """The steps of the answer to a request of this process's one visit; see :meth:`Session.handle`."""
    global _session  # noqa: PLW0603 - a worker has one page
    if _session is None:
        _session = Session()
    return _session.handle(request)
