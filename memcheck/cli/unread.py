"""Options that are for a framework's config or a script, where a run reads none: they are said, never ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from memcheck.cli.options import CheckOptions
from memcheck.cli.tell import tell
from memcheck.config.discover import PlanFile
from memcheck.errors import UsageError
from memcheck.plan.sniff import looks_like_plan

_File = TypeVar("_File")
_SOURCE = re.compile(rb"\bsource\b")


class UnreadAnswers:
    """``--from`` and each ``--define`` of a command line, until a file is met that they reach."""

    def __init__(self, options: CheckOptions) -> None:
        self._format = options.format
        self._defines = {name: str(value) for name, value in options.defines}
        self._partial = options.from_ref is not None or options.shard is not None or options.skip_unmarked
        """Whether other runs of the same line may read other files."""
        self._plans = self._configs = 0

    def met(self, files: Iterable[_File]) -> Iterator[_File]:
        """The files, each of them noted."""
        for file in files:
            if isinstance(file, PlanFile):
                self.meet(file)
            yield file

    def meet(self, file: PlanFile) -> None:
        """Note which options the file takes: a config all formats, a plan what its ``source`` may take."""
        if not self._format and not self._defines:
            return
        if looks_like_plan(file.data):
            self._plans += 1
            if _SOURCE.search(file.data):
                self._defines.clear()  # its script is another file
            return
        self._configs += 1
        self._format = None
        from memcheck.configs.types import JOB

        if file.path.endswith(".ipynb") or ".py" in file.path or b".py" in file.data:
            self._defines.pop(JOB, None)
        for name in [name for name in self._defines if re.search(rf"\b{re.escape(name)}\b".encode(), file.data)]:
            del self._defines[name]

    def settle(self) -> None:
        """Say which options no file took.

        Raises:
            UsageError: there are some, and the run read every file that the command line means.
        """
        if not self._plans and not self._configs:
            return
        if self._format:
            said, help = f"--from {self._format} reaches no file: a plan is no config", "leave it out"
        elif self._defines:
            name, value = next(iter(self._defines.items()))
            said, help = f"--define {name}={value} reaches no file: no script names `{name}`", "check the spelling"
            if not self._configs:
                said = f"--define {name}={value} reaches no file: a plan has no variables"
                help = "state a key of the plan: --set training.micro_batch_size=2"
        else:
            return
        if not self._partial:
            raise UsageError(said, help)
        tell(f"memcheck: warning: {said}\n")
