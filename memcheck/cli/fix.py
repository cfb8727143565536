"""``check --fix`` and ``--diff``: mend the files before they are judged, or show what would be done."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff

from memcheck.cli.judging import CLEAN, FINDINGS, USAGE, Gates, configurations_of, plan_files
from memcheck.cli.options import CheckOptions
from memcheck.cli.replace import replace_all
from memcheck.cli.review.fix import fix_file
from memcheck.cli.tell import complain, tell, write_bug_report
from memcheck.cli.write import write_document
from memcheck.config.discover import STDIN
from memcheck.configs.documents import is_config
from memcheck.errors import DEFECT, UsageError
from memcheck.plan.text import read_bytes
from memcheck.result import Unreadable


def fix_paths(options: CheckOptions) -> int | None:
    """Mend every file, or print the diff and return its exit code. None: the files are to be checked as they are now.

    Raises:
        UsageError: options that exclude each other, nothing to fix, or a file that cannot be written.
    """
    _refuse(options)
    configurations = configurations_of(options)
    gates = Gates(options, configurations)
    seen, found, changed = 0, 0, 0
    elsewhere: list[str] = []
    defects: tuple[str, ...] = ()
    unreadable = False
    texts: dict[str, bytes] = {}
    configs: list[str] = []
    for file in plan_files(options, configurations, [], elsewhere, []):
        if isinstance(file, Unreadable):
            unreadable = True
            if options.diff:
                complain(f"cannot read {file.path}: {file.message}")
            continue
        seen += 1
        gate = gates.of(file.path)._replace(texts=texts)
        fixed = fix_file(file.path, file.data, gate, unsafe=options.unsafe_fixes)
        defects += fixed.traces
        before = {file.path: file.data, **{path: texts.get(path) or read_bytes(path) for path in fixed.texts}}
        after = {file.path: fixed.data, **fixed.texts}
        if before == after:
            configs += [file.path] if is_config(file.path, file.data) else []
            continue
        changed += sum(before[path] != after[path] for path in after)
        found += len(fixed.fixes)
        if options.diff:
            write_document("".join(difference(path, before[path], after[path]) for path in after))
            texts.update(fixed.texts)
        else:
            replace_files(before, after)
    if changed and not options.quiet:
        verb = "would fix" if options.diff else "fixed"
        _say(f"{verb} {_number(found, 'finding')} in {_number(changed, 'file')}")
    if configs and not options.quiet:
        _say(f"{_not_edited(configs)}; {_as_plan(configs[0], options)}")
    if defects and options.diff:
        write_bug_report(list(options.arguments), defects)
        return DEFECT
    if not options.diff:
        return None
    if not seen and not unreadable and not elsewhere and not options.allow_empty:
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
        configs = [path for path in options.paths if os.path.isfile(path) and is_config(path, read_bytes(path))]
        if configs:
            raise UsageError(_not_edited(configs), _as_plan(configs[0], options))
        raise UsageError("--fix and --diff mend plans as they are written, not on another --gpu", "leave out --gpu")
    if STDIN in options.paths and not options.diff:
        raise UsageError("stdin cannot be written", "--diff shows what would be fixed")


def _not_edited(configs: Sequence[str]) -> str:
    """That no fix edits configs."""
    more = f" and {len(configs) - 1} more" if len(configs) > 1 else ""
    return f"--fix and --diff edit plans, not configs: {configs[0]}{more}"


def _as_plan(path: str, options: CheckOptions) -> str:
    """What to do with a config instead: the command that makes a plan of it."""
    named = (("--gpu", options.gpu), ("--gpus", options.gpus), ("--gpus-per-node", options.gpus_per_node))
    stated = "".join(f" {name} {value}" for name, value in (*named, ("--nodes", options.nodes)) if value is not None)
    return f"change the config yourself, or write a plan: `memcheck import {path}{stated} --output plan.yaml`"


def difference(path: str, before: bytes, after: bytes) -> str:
    """A unified diff that ``patch -p0`` applies; carriage returns and a missing last line end are kept."""
    lines = _unified(_lines(before), _lines(after), path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _unified(old: list[str], new: list[str], path: str) -> Iterator[str]:
    """The lines of a unified diff.

    Where no line came or went, lines are compared one by one: difflib takes a time that grows with their square.
    """
    if len(old) != len(new):
        yield from unified_diff(old, new, path, path)
        return
    yield f"--- {path}\n"
    yield f"+++ {path}\n"
    for group in _Paired(None, old, new).get_grouped_opcodes():
        first, end = group[0][1], group[-1][2]
        place = f"{first + 1}" if end - first == 1 else f"{first + 1},{end - first}"
        yield f"@@ -{place} +{place} @@\n"
        for kind, start, stop, _, _ in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[start:stop])
            else:
                yield from (f"-{line}" for line in old[start:stop])
                yield from (f"+{line}" for line in new[start:stop])


class _Paired(SequenceMatcher[str]):
    """Lines of two texts, as many in each, compared one by one."""

    def set_seqs(self, a: Sequence[str], b: Sequence[str]) -> None:
        """Keep the lines, without an index of them."""
        self._pair = a, b

    def get_opcodes(self) -> list[tuple[str, int, int, int, int]]:  # type: ignore[override]
        """Equal and replaced lines in turn."""
        return [
            ("equal" if same else "replace", first, end, first, end) for same, first, end in _stretches(*self._pair)
        ]


def _stretches(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[bool, int, int]]:
    """Runs of equal and of changed lines: whether they are equal, the index of the first line, and the end index."""
    first = 0
    for number in range(1, len(old) + 1):
        same = old[first] == new[first]
        if number == len(old) or (old[number] == new[number]) != same:
            yield same, first, number
            first = number


def _lines(data: bytes) -> list[str]:
    """Lines as patch counts them: only a line feed ends one."""
    parts = data.decode("utf-8").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def replace_files(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Write mended files, all or none.

    Raises:
        UsageError: one of them cannot be written, or is not what was read any more.
    """
    path = ""
    try:
        for path, data in before.items():
            if read_bytes(path) != data:
                raise UsageError(f"{path} changed while it was being fixed", "run memcheck again")
        path = next(iter(after))
        replace_all({path: data for path, data in after.items() if data != before[path]})
    except OSError as error:
        name = path if error.filename is None else error.filename
        raise UsageError(f"cannot write {name}: {error.strerror or error}", "nothing was written") from error


def _say(message: str) -> None:

    tell(f"memcheck: {message}\n")


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
