"""What ``check`` does, once its options are known."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from memcheck import __version__
from memcheck.cli.judging import (
    CLEAN,
    FINDINGS,
    USAGE,
    FileVerdict,
    Gates,
    candidates,
    configurations_of,
    judged,
    keeper_of,
    may_be_many,
    plan_files,
    size_of,
)
from memcheck.cli.options import STATED, CheckOptions, Output, refuse_beside_launch, repeated
from memcheck.cli.write import complain, first, prepare, tell, write_bug_report, write_each
from memcheck.config.find import Candidate, Configurations, PlanFile
from memcheck.errors import DEFECT
from memcheck.record import Record
from memcheck.report import WITH_PAGE_LINKS, renderer
from memcheck.rules.result import PlanResult, Report, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.kept import Keeper
    from memcheck.cli.nothing import UnseenSearch
    from memcheck.edge.screen import Screen


MOST = 8
"""The most processes that ``--jobs auto`` starts."""
WORTH = {"fork": 64, "spawn": 256}
"""Files of the usual size from which on several processes are started, by how that is done.

Beside its start a process costs what it has to find out anew: plans of one model share most of their prices.
"""


def verdicts(
    files: Iterator[PlanFile | Unreadable], gates: Gates, options: CheckOptions, keeper: Keeper | None = None
) -> Iterator[FileVerdict]:
    """The verdict on every file, in their order, however many processes judge them.

    Raises:
        ConfigurationError: a configuration file that cannot be used.
    """
    return _verdicts(files if keeper is None else keeper.found(files), gates, options, keeper)


def _verdicts(
    files: Iterator[PlanFile | Unreadable | FileVerdict], gates: Gates, options: CheckOptions, keeper: Keeper | None
) -> Iterator[FileVerdict]:
    jobs = usable_cores() if options.jobs is None else options.jobs
    ahead: list[PlanFile | Unreadable | FileVerdict] = []
    if jobs > 1:
        method, size = start_method(), 0
        for file in files:
            ahead.append(file)
            size += size_of(file)
            if size >= WORTH[method]:
                from memcheck.cli.pool import Pool

                yield from Pool(method, jobs, gates, options, keeper).verdicts(chain(ahead, files))
                return
    for file in chain(ahead, files):
        yield judged(file, gates, keeper)


def usable_cores() -> int:
    """How many processes ``auto`` is: one for each core that this one may use, up to ``MOST``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


def start_method() -> str:
    """``fork`` where that is quick and safe: on Linux, and with no other thread that may hold a lock."""
    threading = sys.modules.get("threading")
    alone = threading is None or threading.active_count() == 1
    return "fork" if sys.platform == "linux" and alone else "spawn"


def run_check(options: CheckOptions) -> int:
    """Check everything, write every report, and return the exit code.

    Raises:
        UsageError: nothing to check, a report file that cannot be written, or an extra that is not installed.
        ConfigurationError: a configuration file that cannot be used.
    """
    if options.launch:
        refuse_beside_launch(options)
    if options.show_settings is not None:
        from memcheck.cli.settings import show_settings

        return show_settings(options)
    if options.fix or options.unsafe_fixes or options.diff:
        from memcheck.cli.review.fix import fix_paths

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
        from memcheck.cli.nothing import search_of

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
        write_bug_report(list(options.arguments), report.defects)
        return DEFECT
    if report.unreadable:
        return USAGE
    return FINDINGS if fails and not options.exit_zero else CLEAN


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
        from memcheck.cli.nothing import UnreadAnswers

        unread = UnreadAnswers(options)
        files = unread.met(files)
    linked = any(output.format in WITH_PAGE_LINKS for output in options.outputs)
    page_links: dict[str, str] = {}
    for file, results, traces in verdicts(files, gates, options, keeper):
        judged += 1
        if isinstance(file, Unreadable) and not file.refused:
            unreadable.append(file)
            continue
        defects += traces
        plans += results
        if linked and (page_url := gates.of(file.path).settings.page_url) and isinstance(file, PlanFile):
            from memcheck.cli.link import page_link

            page_links[file.path] = page_link(page_url, file, configurations)
        fails |= any(plan.status != "passed" for plan in results) and gates.of(file.path).fail_on != "never"
    if unread is not None:
        unread.settle()
    gates.warn_of_stale(plans)
    plain = not (unreadable or defects or gates.have_baselines)
    if unmarked:
        plain &= not warn_of_unmarked(unmarked, plans)
    report = Report(
        version=__version__,
        plans=tuple(plans),
        unreadable=tuple(unreadable),
        defects=tuple(defects),
        unchanged=len(unchanged),
        elsewhere=len(elsewhere),
        stated=_stated(options),
        page_links=page_links,
    )
    return Checked(report=report, fails=fails, files=judged, repeatable=plain and bool(plans))


def _stated(options: CheckOptions) -> tuple[str, ...]:
    """What the command line says of the jobs; nothing is loaded where it says nothing."""
    if not options.launch and not any(getattr(options, name) not in (None, ()) for name in STATED):
        return ()
    return repeated(options)


def write_reports(report: Report, options: CheckOptions) -> None:
    """Each format to where it was asked for, and then statistics."""
    write_all(options, lambda form, screen: renderer(form)(report, screen))
    if options.statistics:
        from memcheck.cli.nothing import write_statistics

        write_statistics(report, options)


def write_all(options: CheckOptions, render: Callable[[str, Screen], str | bytes]) -> None:
    """Render every format that was asked for, and send each to where it was asked for."""
    write_each(options.outputs, options.color, render, quiet=options.quiet, verbose=options.verbose)


def tell_of_empty_share(elsewhere: int, options: CheckOptions) -> None:
    """Say on stderr, where reports for programs do not get it, that other shares have every file."""
    if not options.quiet:
        where = (
            "the only plan file is in another shard"
            if elsewhere == 1
            else f"all {elsewhere} plan files are in other shards"
        )
        tell(f"memcheck: nothing to check in shard {options.shard}: {where}\n")


def warn_of_unmarked(unmarked: Sequence[str], plans: Sequence[PlanResult]) -> bool:
    """Say which files look like plans and were not judged, but for those that plans extend; whether there are any."""
    bases = {os.path.normpath(path) for plan in plans for path in plan.sources}
    left = [path for path in unmarked if os.path.normpath(path) not in bases]
    if left:
        tell(
            f"memcheck: warning: not checked, because `memcheck: 1` is not at the top: {first(left)}\n"
            "  help: a plan has that key; a file that plans extend needs none\n",
        )
    return bool(left)
