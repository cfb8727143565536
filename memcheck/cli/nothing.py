"""What ``check`` says where there is no plan: which configs are there, and how to check them.

Options that are for a framework's config or a script, where a run reads none: they are said, never ignored.

What the search of a folder leaves out.

Where the counts of ``--statistics`` go.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from memcheck.cli.options import CheckOptions, stated_beside
from memcheck.cli.write import first, screen_of, tell, write_stdout
from memcheck.config.find import Configurations, PlanFile
from memcheck.config.unseen import Unseen, UnseenPlans
from memcheck.configs.nearby import Nearby, nearby
from memcheck.configs.types import JOB
from memcheck.edge.screen import one_line, plural, put
from memcheck.errors import UsageError
from memcheck.plan.sniff import looks_like_plan
from memcheck.report.screens import statistics
from memcheck.rules.result import Report

SHOWN = 4
"""Command lines that are shown."""
NONE = (
    "a plan is a YAML file with the top-level key `memcheck: 1`; `memcheck init` writes one, and --allow-empty "
    "accepts that there is none"
)


def nothing_to_check(options: CheckOptions, configurations: Configurations) -> UsageError:
    """The error, with the command line that checks each config in the folders that were searched."""
    paths = options.paths or configurations.of_folder(os.getcwd()).paths or (".",)
    found = nearby([path for path in paths if os.path.isdir(path)], stated_beside(options))
    where = ", ".join(map(one_line, options.paths)) or "the working directory"
    return UsageError(f"nothing to check: no plan in {where}", _help(found))


def _help(found: Nearby) -> str:
    if not found.commands:
        seen = f"; {_open(found)}" if found.open else ""
        return NONE + seen
    lines = ["memcheck can check these configs; put your own GPUs into the command:"]
    lines += [f"    {one_line(command)}" for command in found.commands[:SHOWN]]
    left = len(found.commands) - SHOWN
    if left > 0 or found.more:
        lines.append(f"    and {f'{left:,} more' if left > 0 else 'more'}{' at least' if found.more else ''}")
    if found.open:
        lines.append(f"  {_open(found)}")
    return "\n".join([*lines, "  `memcheck init` writes a plan, `memcheck import FILE` the plan of a config"])


def _open(found: Nearby) -> str:
    """Configs that do not say enough."""
    first = one_line(found.open[0])
    more = f" and {plural(len(found.open) - 1, 'more config')}" if len(found.open) > 1 else ""
    return f"not everything is stated in {first}{more}: `memcheck check FILE` names what is missing"


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


def warn_of_unseen(unseen: Unseen) -> None:
    """Say which plans, and which folders, the search of a folder left out."""
    said = []
    if unseen.plans:
        count = len(unseen.plans)
        what = f"{count:,} {'plan' if count == 1 else 'plans'} in folders that a search leaves out"
        said.append(f"{what}: {first(unseen.plans)}")
    if unseen.left:
        said.append(f"not looked into, for too many files or a link out of the repository: {first(unseen.left)}")
    tell(f"memcheck: warning: not checked: {'; '.join(said)}\n  help: name the folder in the paths to check it\n")


class UnseenSearch(UnseenPlans):
    """The plans that one run of ``check`` does not search for, and the warning about them."""

    def tell(self) -> None:
        """Print one warning that names plans and folders; print nothing where the folders hold no plan."""
        if self.found.plans or self.found.left:
            warn_of_unseen(self.found)


def search_of(options: CheckOptions, configurations: Configurations) -> UnseenSearch:
    """The search of a run over folders.

    A plan that it finds fails under ``forbid-unseen``, and where the configuration is read from a commit: there no
    plan may avoid the check.
    """

    def strict(folder: str) -> bool:
        policy = configurations.of_folder(os.path.abspath(folder)).policy
        return options.config_from_ref is not None or (policy is not None and policy.forbid_unseen)

    return UnseenSearch(strict)


FOR_PEOPLE = ("full", "concise", "brief", "github")
"""Formats that allow other text in the same output."""


def write_statistics(report: Report, options: CheckOptions) -> None:
    """Behind a report for people; on stderr if stdout carries a report for programs."""
    shown = [output.format for output in options.outputs if output.file is None]
    if not all(form in FOR_PEOPLE for form in shown):
        put(sys.stderr, statistics(report, screen_of(sys.stderr, options.color)))
        return
    silent = options.quiet and not any(plan.findings for plan in report.plans)
    gap = "\n" if shown and not silent else ""
    write_stdout(gap + statistics(report, screen_of(sys.stdout, options.color)))
