"""A run that was made before: its files, all they rest on and how they are judged are the same, and so are its reports.

Nothing is trusted for its name or its time: every file is read and summed anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from memcheck.cli.judging import MANY
from memcheck.cli.options import CheckOptions
from memcheck.cli.write import shown_on
from memcheck.config.find import Candidate
from memcheck.errors import ConfigurationError
from memcheck.plan.text import MAX_BYTES
from memcheck.report import DOCS_URL, renderer
from memcheck.rules.result import Report, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.kept import Verdicts
    from memcheck.config.find import Configurations
    from memcheck.edge.screen import Screen

FORMATS = frozenset({"full", "concise", "brief", "json", "jsonl", "csv", "markdown"})
"""Formats that are made of verdicts and the screen alone; others ask for the repository, or draw lots.

Colours and links are of a terminal, and only what this process has made of them may leave.
"""
MOST_HELD = 8 * 2**20
"""Bytes of all files together that are held before any of them is judged."""
Found = Candidate | Unreadable


class WholeRun:
    """One run, and what an earlier one like it said."""

    def __init__(self, verdicts: Verdicts, options: CheckOptions, configurations: Configurations) -> None:
        self._verdicts, self._options, self._configurations = verdicts, options, configurations
        self._name = ""
        self._texts: list[str] = []
        self.fails = False
        """Whether a finding of the earlier run fails this one."""

    def known(self, files: Iterator[Found]) -> tuple[bool, Iterator[Found]]:
        """Whether the same run was made before, and the files of this one."""
        held: list[Found] = []
        size = 0
        for found in files:
            held.append(found)
            if isinstance(found, Unreadable) or len(found.file.data) > MAX_BYTES:
                return False, chain(held, files)
            size += len(found.file.data)
            if size > MOST_HELD:
                return False, chain(held, files)
        if len(held) < MANY:
            return False, iter(held)
        try:
            self._name = self._verdicts.run_name(self._asked(), self._parts(held))
        except ConfigurationError:  # of a file that may be no plan: whoever judges it says so
            return False, iter(held)
        told = self._verdicts.find_run(self._name)
        if told is not None:
            self.fails, self._texts = told
        return told is not None, iter(held)

    def _asked(self) -> str:
        """What is written, how it may look, and all other options."""
        options = self._options
        screens = shown_on(options.outputs, options.color, quiet=options.quiet, verbose=options.verbose)
        return repr((options._replace(arguments=(), jobs=None), screens, os.environ.get(DOCS_URL)))

    def _parts(self, held: Iterable[Found]) -> Iterator[tuple[str, bytes]]:
        """Every file under its name, with the settings that it is judged by."""
        numbers: dict[int, int] = {}
        for found in held:
            if isinstance(found, Unreadable):
                continue
            settings = self._configurations.of(found.file.path)
            number = numbers.get(id(settings))
            if number is None:
                number = numbers[id(settings)] = len(numbers)
                yield repr(settings), b""
            yield f"{number} {found.must_be_marked:d} {found.stdin:d} {found.file.path!r}", found.file.data

    def say(self) -> Callable[[str, Screen], str]:
        """What the earlier run said in place of a renderer, one output after the other."""
        texts = iter(self._texts)
        return lambda _form, _screen: next(texts)

    def heard(self, report: Report) -> Callable[[str, Screen], str | bytes]:
        """What renders a report and takes down what it says."""

        def rendered(form: str, screen: Screen) -> str | bytes:
            text = renderer(form)(report, screen)
            if isinstance(text, str) and form in FORMATS and not screen.color and not screen.links:
                self._texts.append(text)
            return text

        return rendered

    def keep(self, files: int, *, fails: bool) -> None:
        """Keep the output of the run, if every report was recorded and the verdicts of all ``files`` files are kept."""
        if self._name and files == self._verdicts.kept and len(self._texts) == len(self._options.outputs):
            self._verdicts.keep_run(self._name, [fails, self._texts])
