"""Every option of ``check``, once: click's parameters and the reader that does without click are both made of them."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.cli import values
from memcheck.config.types import FAIL_ON, UNCERTAIN
from memcheck.record import Record
from memcheck.rules.profiles import PROFILES


class Option(Record):
    """An option of a command line; without ``metavar`` and ``choices`` it is a flag."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    """What help says for the value."""
    read: Callable[[str], object] = str
    """The value of a text; raises ValueError with what is wrong. A repeatable option's is a tuple, and they add up."""
    choices: tuple[str, ...] = ()
    """Words of which the value is one."""
    repeatable: bool = False
    """Whether it may come several times; else the last one counts."""
    default: str | None = None
    completion: str = ""
    """What a shell offers for the value: a function of ``memcheck.cli.completion``, by name."""
    field: str = ""
    """The field of ``CheckOptions``, where that is not the first name with underscores."""

    @property
    def key(self) -> str:
        """The field of ``CheckOptions`` that it sets."""
        return self.field or self.names[0][2:].replace("-", "_")

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar and not self.choices

    def value(self, written: str) -> object:
        """The value of a text.

        Raises:
            ValueError: there is none; what is wrong.
        """
        return values.one_of(self.choices, written) if self.choices else self.read(written)


CHECK_OPTIONS = (
    Option(
        ("--format",),
        "full (default), concise, brief, github, markdown, html, pdf, json, jsonl, csv, sarif, junit, gitlab, "
        "checkstyle or rdjson; =FILE writes there instead of stdout. Repeatable.",
        "FORMAT[=FILE]",
        lambda written: (values.output(written),),
        repeatable=True,
        completion="formats",
        field="outputs",
    ),
    Option(("--fail-on",), "Lowest severity that fails the run [default: error].", choices=FAIL_ON),
    Option(("--fail-above",), "Fail plans that need more of the capacity, e.g. 90%.", "SHARE", values.share),
    Option(("--warn-above",), "Warn about plans above this use of the capacity.", "SHARE", values.share),
    Option(
        ("--uncertain",),
        "What a plan does whose interval crosses the limit [default: warn].",
        choices=UNCERTAIN,
    ),
    Option(
        ("--profile",),
        "The rules that count: what may stop a merge (gate, the default), also what a reviewer asks, or all.",
        choices=PROFILES,
    ),
    Option(
        ("--select",),
        "Only these rules, by code, prefix or name: MEM1,MEM203.",
        "RULES",
        values.selectors,
        repeatable=True,
        completion="rules",
    ),
    Option(("--ignore",), "Not these rules.", "RULES", values.selectors, repeatable=True, completion="rules"),
    Option(
        ("--extend-select",),
        "These rules too, whatever the configuration ignores.",
        "RULES",
        values.selectors,
        repeatable=True,
        completion="rules",
    ),
    Option(("--gpu",), "Judge the plans on this GPU instead of their own.", "NAME", values.gpu, completion="gpus"),
    Option(("--gpus-per-node",), "Judge on so many GPUs of a node.", "N", values.count),
    Option(("--nodes",), "Judge on so many nodes.", "N", values.count),
    Option(("--sequence-length",), "Tokens of a row, for configs that do not say.", "N", values.count),
    Option(
        ("--images",),
        "The pictures of a sample, for configs that train on them: per_sample: 2, width: 1280, height: 720.",
        "MAPPING",
        values.images,
    ),
    Option(
        ("--framework-version",),
        "The framework's release, whose defaults count for configs that do not say [default: the newest].",
        "VERSION",
        values.release,
    ),
    Option(("--config",), "This configuration file instead of the nearest one.", "FILE", completion="files"),
    Option(
        ("--config-from-ref",),
        "Configuration and baseline as this git ref has them, not as the working tree has (for gates).",
        "REF",
    ),
    Option(
        ("--from-ref",),
        "Judge only plans that changed against this git ref; the merge base where it is a branch.",
        "REF",
    ),
    Option(
        ("--jobs", "-j"),
        "Processes that judge where there are many plans; auto: one for each core [default: 1].",
        "N",
        values.jobs,
        default="1",
    ),
    Option(
        ("--shard",),
        "Judge only the I-th of N shares of the plan files, by their paths (for a CI matrix).",
        "I/N",
        values.shard,
    ),
    Option(("--no-cache",), "Judge every plan anew, and keep no verdict."),
    Option(("--no-suppressions",), "Comments in plans hide nothing (for gates)."),
    Option(("--skip-unmarked",), "Skip named files that carry no `memcheck:` key (for hooks)."),
    Option(("--brief",), "Print `brief` where no --format is given (for hooks)."),
    Option(("--allow-empty",), "Exit 0 if there is nothing to check."),
    Option(("--exit-zero",), "Exit 0 even if plans fail."),
    Option(("--quiet", "-q"), "Show only findings."),
    Option(("--verbose", "-v"), "Show the memory budget, the largest tensors and every default that was used."),
    Option(("--statistics",), "Add counts per rule and the fullest plans."),
    Option(("--color",), "Colours on stdout.", choices=values.COLORS, default="auto"),
    Option(("--stdin-filename",), "The name of what `-` reads, for messages and relative paths.", "PATH"),
    Option(("--baseline",), "Hide what this baseline accepts; empty: none, whatever is configured.", "FILE"),
    Option(("--fix",), "Mend what has one right answer, then check."),
    Option(("--unsafe-fixes",), "With --fix or --diff: also make the first remedy of plans that fail."),
    Option(("--diff",), "Show what --fix would change, and write nothing; exit 1 if it would."),
    Option(
        ("--show-settings",), "Print the settings that apply to FILE, and check nothing.", "FILE", completion="files"
    ),
)
