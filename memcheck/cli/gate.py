"""What ``check`` does, once its options are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from memcheck import __version__
from memcheck.cli.guard import DEFECT, complain
from memcheck.cli.jobs import MANY, keeper_of, verdicts
from memcheck.cli.options import STATED, CheckOptions, Output
from memcheck.cli.write import prepare, write_each
from memcheck.config.discover import STDIN, Candidate, PlanFile, find_candidates, plans_among
from memcheck.config.find import Configurations
from memcheck.config.gate import EVERY, QUICK, Gate, known
from memcheck.config.types import DEFAULT_FAIL_ON, Settings
from memcheck.record import Record
from memcheck.report import WITH_DOSSIER, WITH_GROUNDS
from memcheck.result import PlanResult, Report, Unreadable
from memcheck.rules.profiles import GATE
from memcheck.what_if import make_dossier, with_remedies

TYPE_CHECKING = False
if TYPE_CHECKING:  # read only where one is configured
    from memcheck.cli.kept import Keeper
    from memcheck.cli.unseen import UnseenSearch
    from memcheck.edge.screen import Screen
    from memcheck.review.baseline.file import AcceptedFinding
    from memcheck.review.baseline.ratchet import Baseline

CLEAN, FINDINGS, USAGE = 0, 1, 2


def run_check(options: CheckOptions) -> int:
    """Check everything, write every report, and return the exit code.

    Raises:
        UsageError: nothing to check, a report file that cannot be written, or an extra that is not installed.
        ConfigurationError: a configuration file that cannot be used.
    """
    if options.launch:
        from memcheck.cli.launch_line import refuse_beside_launch

        refuse_beside_launch(options)
    if options.show_settings is not None:
        from memcheck.cli.settings import show_settings

        return show_settings(options)
    if options.fix or options.unsafe_fixes or options.diff:
        from memcheck.cli.fix import fix_paths

        code = fix_paths(options)
        if code is not None:
            return code
    if options.brief and options.outputs == CheckOptions().outputs:
        options = options._replace(outputs=(Output("brief"),))
    prepare(options.outputs)
    configurations = configurations_of(options)
    gates = Gates(options, configurations)
    keeper = keeper_of(gates, options)
    if keeper is None:
        return _run(options, configurations, gates)
    try:
        return _run(options, configurations, gates, keeper)
    finally:
        keeper.close()


def _run(options: CheckOptions, configurations: Configurations, gates: Gates, keeper: Keeper | None = None) -> int:
    """Run with what was found out so far, and return the exit code."""
    whole = found = unseen = None
    if not options.launch and (not options.paths or any(map(os.path.isdir, options.paths))):
        from memcheck.cli.unseen import search_of

        unseen = search_of(options, configurations)
    if keeper is not None and keeper.verdicts.usable and may_be_many(options):
        from memcheck.cli.whole import WholeRun

        whole = WholeRun(keeper.verdicts, options, configurations)
        known, found = whole.known(candidates(options, configurations, unseen))
        if known:
            if unseen is not None:
                unseen.tell()
            write_all(options, whole.say())
            return FINDINGS if whole.fails and not options.exit_zero else CLEAN
    checked = check_paths(options, configurations, gates, keeper, found, unseen)
    if unseen is not None:
        unseen.tell()
    report, fails = checked.report, checked.fails
    for item in report.unreadable:
        complain(f"cannot read {item.path}: {item.message}")
    if not report.plans and not report.unreadable and not report.unchanged:
        if report.elsewhere:
            from memcheck.cli.notices import tell_of_empty_share

            tell_of_empty_share(report.elsewhere, options)
        elif not options.allow_empty:
            from memcheck.cli.nothing import nothing_to_check

            raise nothing_to_check(options, configurations)
    if whole is None or not checked.repeatable:
        write_reports(report, options)
    else:
        write_all(options, whole.heard(report))
        whole.keep(checked.files, fails=fails)
    if report.defects:
        from memcheck.cli.defect import write_bug_report

        write_bug_report(list(options.arguments), report.defects)
        return DEFECT
    if report.unreadable:
        return USAGE
    return FINDINGS if fails and not options.exit_zero else CLEAN


def configurations_of(options: CheckOptions) -> Configurations:
    """The configurations that govern a run: those of the working tree, or those of a commit.

    Raises:
        UsageError: there is no such commit.
    """
    if options.config_from_ref is None:
        return Configurations(options.config)
    from memcheck.review.history.policy import committed_files

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
            from memcheck.cli.stated import stated_answers, stated_beside, stated_changes

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
            from memcheck.review.baseline.ratchet import Baseline

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
                from memcheck.cli.notices import tell_of_stale

                tell_of_stale(file, stale)


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
        from memcheck.cli.launch_line import launch_file

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
        from memcheck.cli.share import only_share

        files = only_share(files, options.shard, elsewhere)
    if options.from_ref is None:
        return files
    from memcheck.review.history.changed import only_changed

    return only_changed(
        files,
        options.from_ref,
        unchanged,
        lambda path: baseline_file(options, configurations.of(path)),
        stdin=STDIN in (options.paths or configurations.of_folder(os.getcwd()).paths),
    )


class Checked(Record):
    """The result of one run of ``check``."""

    report: Report
    fails: bool
    """Whether any finding reaches the severity that fails the run."""
    files: int
    """How many files were judged."""
    repeatable: bool
    """Whether the report holds all that was said."""


def check_paths(
    options: CheckOptions,
    configurations: Configurations,
    gates: Gates,
    keeper: Keeper | None = None,
    found: Iterator[Candidate | Unreadable] | None = None,
    unseen: UnseenSearch | None = None,
) -> Checked:
    """The report over all paths; ``found`` are their files, if those were read already.

    ``unseen`` looks into what a search leaves out.
    """
    plans: list[PlanResult] = []
    unreadable: list[Unreadable] = []
    defects: list[str] = []
    fails = False
    judged = 0
    unchanged: list[str] = []
    elsewhere: list[str] = []
    unmarked: list[str] = []
    found = candidates(options, configurations, unseen) if found is None else found
    files = plan_files(options, configurations, unchanged, elsewhere, unmarked, found)
    unread = None
    if options.format is not None or options.defines:
        from memcheck.cli.unread import UnreadAnswers

        unread = UnreadAnswers(options)
        files = unread.met(files)
    for file, results, traces in verdicts(files, gates, options, keeper):
        judged += 1
        if isinstance(file, Unreadable) and not file.refused:
            unreadable.append(file)
            continue
        defects += traces
        plans += results
        fails |= any(plan.status != "passed" for plan in results) and gates.of(file.path).fail_on != "never"
    if unread is not None:
        unread.settle()
    gates.warn_of_stale(plans)
    plain = not (unreadable or defects or gates.have_baselines)
    if unmarked:
        from memcheck.cli.notices import warn_of_unmarked

        plain &= not warn_of_unmarked(unmarked, plans)
    report = Report(
        version=__version__,
        plans=tuple(plans),
        unreadable=tuple(unreadable),
        defects=tuple(defects),
        unchanged=len(unchanged),
        elsewhere=len(elsewhere),
    )
    return Checked(report=report, fails=fails, files=judged, repeatable=plain and bool(plans))


def write_reports(report: Report, options: CheckOptions) -> None:
    """Each format to where it was asked for, and then statistics."""
    from memcheck.report import renderer

    write_all(options, lambda form, screen: renderer(form)(report, screen))
    if options.statistics:
        from memcheck.cli.statistics import write_statistics

        write_statistics(report, options)


def write_all(options: CheckOptions, render: Callable[[str, Screen], str | bytes]) -> None:
    """Render every format that was asked for, and send each to where it was asked for."""
    write_each(options.outputs, options.color, render, quiet=options.quiet, verbose=options.verbose)
