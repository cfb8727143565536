"""Which files a run judges, how strictly, and the verdict on each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from memcheck.cli.options import STATED, CheckOptions, Share, launch_file, stated_answers, stated_beside, stated_changes
from memcheck.cli.write import tell
from memcheck.config.find import (
    DEFAULT_FAIL_ON,
    EVERY,
    QUICK,
    STDIN,
    Candidate,
    Configurations,
    Gate,
    PlanFile,
    Settings,
    find_candidates,
    known,
    plans_among,
)
from memcheck.record import Record
from memcheck.report import WITH_DOSSIER, WITH_GROUNDS
from memcheck.rules import GATE
from memcheck.rules.result import PlanResult, Unreadable
from memcheck.what_if import make_dossier, with_remedies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.kept import Keeper
    from memcheck.cli.nothing import UnseenSearch
    from memcheck.cli.review.baseline import AcceptedFinding, Baseline


CLEAN, FINDINGS, USAGE = 0, 1, 2


def configurations_of(options: CheckOptions) -> Configurations:
    """The configurations that govern a run: those of the working tree, or those of a commit.

    Raises:
        UsageError: there is no such commit.
    """
    if options.config_from_ref is None:
        return Configurations(options.config)
    from memcheck.cli.review.baseline import committed_files

    return Configurations(options.config, committed_files(options.config_from_ref))


def _grounds(options: CheckOptions) -> int:
    """How many estimates may be made of what plans that pass rest on: none where no report shows it."""
    if not any(output.format in WITH_GROUNDS for output in options.outputs):
        return 0
    return EVERY if options.verbose else QUICK


class Gates:
    """How strictly to judge each file: the command line over the file's configuration."""

    def __init__(self, options: CheckOptions, configurations: Configurations) -> None:
        self._options = options
        self._configurations = configurations
        self._select, self._ignore = known(options.select), known(options.ignore)
        self._added = known(options.extend_select)
        self._baselines: dict[str, Baseline] = {}
        self._gates: dict[int, Gate] = {}
        """By the configuration's settings, where those are the same for every file."""

    def of(self, path: str) -> Gate:
        """The gate for one file."""
        settings = self._configurations.of(path)
        if settings.per_file_ignores or settings.configs:
            return self._made(path, settings)
        known = self._gates.get(id(settings))  # configurations keep their settings, so that no other has this one's id
        if known is None:
            known = self._gates[id(settings)] = self._made(path, settings)
        return known

    def _made(self, path: str, settings: Settings) -> Gate:
        options = self._options
        if options.fail_above is not None:
            settings = settings._replace(fail_above=options.fail_above)
        select, added = self.selected(settings)
        inherited = (*settings.ignored_for(path), *(() if self._ignore else settings.ignore))
        if added:
            select = (*(select or ("",)), *added)
        if self._added:
            inherited = tuple(code for code in inherited if not code.startswith(self._added))
        baseline = self._baseline(settings)
        changes: dict[str, object] = {}
        beside: dict[str, object] = {}
        answers: dict[str, object] = {}
        if any(getattr(options, name) not in (None, ()) for name in STATED):
            changes, beside, answers = stated_changes(options), stated_beside(options), stated_answers(options)
        return Gate(
            settings=settings,
            fail_on=options.fail_on or settings.fail_on or DEFAULT_FAIL_ON,
            fail_above=options.fail_above,
            warn_above=options.warn_above,
            uncertain=options.uncertain,
            unpacked=options.unpacked,
            profile=options.profile or settings.profile or GATE,
            select=select,
            ignore=(*self._ignore, *inherited),
            changes=changes,
            hardware={**(settings.hardware_of(path) or {}), **beside},
            answers=answers,
            baseline=None if baseline is None else baseline.judge,
            baseline_file="" if baseline is None else baseline.file,
            suppressions=not options.no_suppressions,
            remedies=with_remedies,
            grounds=_grounds(options),
            dossier=make_dossier if any(output.format in WITH_DOSSIER for output in options.outputs) else None,
        )

    def selected(self, settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The rules that are selected, and those besides: ``--select`` replaces both of the configuration's lists."""
        if self._select:
            return self._select, self._added
        return settings.select, (*settings.extend_select, *self._added)

    @property
    def have_baselines(self) -> bool:
        """Whether findings are compared with a baseline of accepted ones."""
        return bool(self._baselines)

    def _baseline(self, settings: Settings) -> Baseline | None:
        """What holds findings against the baseline."""
        file = baseline_file(self._options, settings)
        if not file:
            return None
        if file not in self._baselines:
            from memcheck.cli.review.baseline import Baseline

            self._baselines[file] = Baseline(file, self._configurations.files.read)
        return self._baselines[file]

    def accepted(self, path: str) -> tuple[AcceptedFinding, ...]:
        """What the baseline of a file holds for the plans in it."""
        file = baseline_file(self._options, self._configurations.of(path))
        return self._baselines[file].entries_of(path) if file in self._baselines else ()

    def take_met(self) -> dict[str, set[AcceptedFinding]]:
        """What each baseline accepted since the last call: for the process that holds all of them together."""
        return {file: baseline.take_met() for file, baseline in self._baselines.items()}

    def add_met(self, met: dict[str, set[AcceptedFinding]]) -> None:
        """Count what another process's baselines accepted as accepted by these."""
        for file, entries in met.items():
            self._baselines[file].add_met(entries)

    def warn_of_stale(self, results: Sequence[PlanResult]) -> None:
        """Say on stderr which entries of the baselines accept nothing any more."""
        for file, baseline in self._baselines.items():
            stale = baseline.stale(results, lambda path, code: self.of(path).as_written and self.of(path).counts(code))
            if stale:
                tell_of_stale(file, stale)


def tell_of_stale(file: str, stale: Sequence[AcceptedFinding]) -> None:
    """Say which entries of a baseline accept nothing any more."""
    shown = ", ".join(f"{entry.code} of {entry.plan}" for entry in stale[:5])
    more = f" and {len(stale) - 5} more" if len(stale) > 5 else ""
    tell(
        f"memcheck: warning: {file} accepts what is gone: {shown}{more}\n"
        "  help: `memcheck baseline write` takes it out\n",
    )


def baseline_file(options: CheckOptions, settings: Settings) -> str:
    """The baseline that counts; none on another GPU, where the accepted numbers mean nothing."""
    if options.gpu is not None:
        return ""
    return settings.baseline if options.baseline is None else options.baseline


def may_be_many(options: CheckOptions) -> bool:
    """Whether a run may check at least ``MANY`` files and its output can be kept as a whole.

    The output of a launch line, of statistics, of a shard, or of changed plans alone is never kept.
    """
    if options.launch or options.statistics or options.shard is not None or options.from_ref is not None:
        return False
    return len(options.paths) >= MANY or not options.paths or any(map(os.path.isdir, options.paths))


def candidates(
    options: CheckOptions, configurations: Configurations, unseen: UnseenSearch | None = None
) -> Iterator[Candidate | Unreadable]:
    """Every file that the options, or else the configuration, mean, and that may hold plans; or the launch line."""
    if options.launch:
        return iter((Candidate(launch_file(options.launch), must_be_marked=False),))
    return find_candidates(
        options.paths or configurations.of_folder(os.getcwd()).paths or (".",),
        skip_unmarked=options.skip_unmarked,
        stdin_filename=options.stdin_filename,
        configured=lambda path: configurations.of(path).hardware_of(path) is not None,
        left_out=None if unseen is None else unseen.left_out,
    )


def plan_files(
    options: CheckOptions,
    configurations: Configurations,
    unchanged: list[str],
    elsewhere: list[str],
    unmarked: list[str],
    found: Iterator[Candidate | Unreadable] | None = None,
) -> Iterator[PlanFile | Unreadable]:
    """Every file to check; those that ``--from-ref`` leaves out are added to ``unchanged``, those of other shares to
    ``elsewhere``, and those that look like plans and lack the mark to ``unmarked``. ``found``: what was read already.
    """
    files = plans_among(candidates(options, configurations) if found is None else found, unmarked)
    if options.shard is not None:
        files = only_share(files, options.shard, elsewhere)
    if options.from_ref is None:
        return files
    from memcheck.cli.review.history.changed import only_changed

    return only_changed(
        files,
        options.from_ref,
        unchanged,
        lambda path: baseline_file(options, configurations.of(path)),
        stdin=STDIN in (options.paths or configurations.of_folder(os.getcwd()).paths),
    )


def only_share(
    files: Iterator[PlanFile | Unreadable], share: Share, elsewhere: list[str]
) -> Iterator[PlanFile | Unreadable]:
    """The files of one share; the paths of all others are added to ``elsewhere``."""
    for file in files:
        if share.takes(file.path):
            yield file
        else:
            elsewhere.append(file.path)


MANY = 16
"""Files from which on a run is kept as a whole, too; fewer verdicts are read as fast one by one."""


SWITCH = "MEMCHECK_NO_CACHE"
"""A variable of the environment: set to anything, no verdict is kept, or taken from an earlier run."""


USUAL_BYTES = 2048
"""The size of a file with one plan; a larger one counts for as many as fit into it."""


class FileVerdict(Record):
    """One file with what became of it."""

    file: PlanFile | Unreadable
    plans: list[PlanResult]
    traces: list[str]
    """Tracebacks of memcheck's own failures on the file."""


def keeper_of(gates: Gates, options: CheckOptions) -> Keeper | None:
    """What keeps verdicts; None where none are to be kept."""
    if options.no_cache or os.environ.get(SWITCH):
        return None
    from memcheck.cli.kept import Keeper

    return Keeper(gates)


def judged(file: PlanFile | Unreadable | FileVerdict, gates: Gates, keeper: Keeper | None = None) -> FileVerdict:
    """The verdict on one file, reached in this process where it is none yet."""
    if isinstance(file, FileVerdict):
        return file
    from memcheck.judge import check_file, refused

    if isinstance(file, PlanFile):
        if keeper is not None:
            return FileVerdict(file, *keeper.judge(file, check_file))
        return FileVerdict(file, *check_file(file.path, file.data, gates.of(file.path)))
    return FileVerdict(file, [refused(file, gates.of(file.path))] if file.refused else [], [])


def size_of(file: PlanFile | Unreadable | FileVerdict) -> int:
    """How many files of the usual size a file counts for."""
    return 1 + len(file.data) // USUAL_BYTES if isinstance(file, PlanFile) else 0
