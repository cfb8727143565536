"""``check --fix`` and ``--diff``: mend the files before they are judged, or show what would be done."""

from __future__ import annotations

from difflib import unified_diff

from memcheck.cli.gate import CLEAN, FINDINGS, USAGE, Gates, plan_files
from memcheck.cli.guard import DEFECT, complain
from memcheck.cli.options import CheckOptions
from memcheck.cli.replace import replace
from memcheck.cli.write import write_stdout
from memcheck.config.find import Configurations
from memcheck.discover import STDIN
from memcheck.errors import UsageError
from memcheck.fix.rounds import Fixed, fix_file
from memcheck.result import Unreadable


def fix_paths(options: CheckOptions) -> int | None:
    """Mend every file, or print the diff and return its exit code. None: the files are to be checked as they are now.

    Raises:
        UsageError: options that exclude each other, nothing to fix, or a file that cannot be written.
    """
    _refuse(options)
    configurations = Configurations(options.config)
    gates = Gates(options, configurations)
    seen, found, changed = 0, 0, 0
    defects: tuple[str, ...] = ()
    unreadable = False
    for file in plan_files(options, configurations, []):
        if isinstance(file, Unreadable):
            unreadable = True
            if options.diff:
                complain(f"cannot read {file.path}: {file.message}")
            continue
        seen += 1
        fixed = fix_file(file.path, file.data, gates.of(file.path), unsafe=options.unsafe_fixes)
        defects += fixed.traces
        if fixed.data == file.data:
            continue
        changed += 1
        found += len(fixed.fixes)
        if options.diff:
            write_stdout(difference(file.path, file.data, fixed))
        else:
            replace_file(file.path, file.data, fixed.data)
    if changed and not options.quiet:
        verb = "would fix" if options.diff else "fixed"
        _say(f"{verb} {_number(found, 'finding')} in {_number(changed, 'file')}")
    if defects and options.diff:
        from memcheck.cli.defect import write_bug_report

        write_bug_report(list(options.arguments), defects)
        return DEFECT
    if not options.diff:
        return None
    if not seen and not unreadable and not options.allow_empty:
        raise UsageError("nothing to fix: no plan in the given paths", "--allow-empty accepts none")
    if unreadable:
        return USAGE
    return FINDINGS if changed and not options.exit_zero else CLEAN


def _refuse(options: CheckOptions) -> None:
    if options.unsafe_fixes and not (options.fix or options.diff):
        raise UsageError(
            "--unsafe-fixes alone does nothing", "add --fix to write the files, or --diff to see what would be"
        )
    if options.gpu is not None:
        raise UsageError("--fix and --diff mend plans as they are written, not on another --gpu", "leave out --gpu")
    if STDIN in options.paths and not options.diff:
        raise UsageError("stdin cannot be written", "--diff shows what would be fixed")


def difference(path: str, before: bytes, fixed: Fixed) -> str:
    """A unified diff that ``patch -p0`` applies; carriage returns and a missing last line end are kept."""
    lines = unified_diff(_lines(before), _lines(fixed.data), path, path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(data: bytes) -> list[str]:
    """Lines as patch counts them: only a line feed ends one."""
    parts = data.decode("utf-8").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def replace_file(path: str, before: bytes, after: bytes) -> None:
    """Write a mended file.

    Raises:
        UsageError: the file cannot be written, or is not what was read any more.
    """
    try:
        with open(path, "rb") as file:
            if file.read() != before:
                raise UsageError(f"{path} changed while it was being fixed", "run memcheck again")
        replace(path, after)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _say(message: str) -> None:
    import sys

    sys.stderr.write(f"memcheck: {message}\n")


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
