"""Every option of ``check``, once: click's parameters and the reader that does without click are both made of them."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.cli import values
from memcheck.config.find import FAIL_ON, UNCERTAIN
from memcheck.record import Record
from memcheck.rules import PROFILES


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
    """Whether the option may be given several times. Of another option the last one is taken."""
    default: str | None = None
    completion: str = ""
    """What a shell offers for the value: a function of ``memcheck.cli.parameters``, by name."""
    field: str = ""
    """The field of ``CheckOptions``, where that is not the first name with underscores."""

    @property
    def key(self) -> str:
        """The field of ``CheckOptions`` that the option sets."""
        return self.field or self.names[0][2:].replace("-", "_")

    @property
    def flag(self) -> bool:
        """Whether the option is a flag, which takes no value."""
        return not self.metavar and not self.choices

    def value(self, written: str) -> object:
        """The value of a text.

        Raises:
            ValueError: there is none; what is wrong.
        """
        return values.one_of(self.choices, written) if self.choices else self.read(written)


HARDWARE_HEADING, JOB_HEADING = "Hardware", "What a config or a command leaves out"
HARDWARE_ANSWERS = (
    Option(
        ("--gpu",),
        "This GPU instead of the plan's own or the config's; `memcheck list gpus` shows the names.",
        "NAME",
        values.gpu,
        completion="gpus",
    ),
    Option(("--gpus",), "The number of all GPUs, on as few nodes as hold them.", "N", values.count),
    Option(("--gpus-per-node",), "The number of GPUs in each node.", "N", values.count),
    Option(("--nodes",), "The number of nodes.", "N", values.count),
    Option(("--host-memory",), "The host memory of a node in GiB, which is then checked.", "GIB", values.gib),
)
JOB_ANSWERS = (
    Option(
        ("--set",),
        "Another value for a key of the plan, or one that a config leaves out: training.method=lora.",
        "KEY=VALUE",
        values.setting,
        repeatable=True,
        field="settings",
    ),
    Option(
        ("--model",),
        "The model instead of the plan's own, or where a config names none.",
        "NAME",
        completion="models",
    ),
    Option(("--micro-batch-size",), "Sequences per GPU in each forward pass.", "N", values.count),
    Option(("--sequence-length",), "Tokens of the longest row; below the limit of a config, too.", "N", values.count),
    Option(
        ("--images",),
        "Pictures per sample, for a config that trains on pictures: 'per_sample: 2, width: 1280, height: 720'.",
        "MAPPING",
        values.images,
    ),
    Option(("--framework",), "The framework that runs the job.", "NAME", values.framework),
    Option(
        ("--framework-version",),
        "The framework's release, whose defaults apply [default: the newest].",
        "VERSION",
        values.release,
    ),
    Option(
        ("--from",),
        "The format of a config that has no key of its own.",
        "FORMAT",
        values.config_format,
        field="format",
    ),
    Option(
        ("--define",),
        "A variable of a script that its caller sets: TP=8.",
        "NAME=VALUE",
        values.define,
        repeatable=True,
        field="defines",
    ),
)
ANSWERS = (*HARDWARE_ANSWERS, *JOB_ANSWERS)
"""What is said of a job: `check`, `estimate` and `import` take the same."""
CHECK_SECTIONS = (
    (
        "What to check",
        (
            Option(("--stdin-filename",), "The file name of what `-` reads from stdin.", "PATH"),
            Option(("--skip-unmarked",), "Skip named files without the key `memcheck:` (for hooks)."),
            Option(("--allow-empty",), "Exit 0 if there is nothing to check."),
            Option(
                ("--config",),
                "Use this configuration file instead of the nearest memcheck.toml or pyproject.toml.",
                "FILE",
                completion="files",
            ),
            Option(
                ("--show-settings",),
                "Print the settings that apply to FILE, and check nothing.",
                "FILE",
                completion="files",
            ),
        ),
    ),
    (HARDWARE_HEADING, HARDWARE_ANSWERS),
    (JOB_HEADING, JOB_ANSWERS),
    (
        "Limits",
        (
            Option(
                ("--fail-above",),
                "Fail a plan that needs more than this share of the GPU's memory, e.g. 90%.",
                "SHARE",
                values.share,
            ),
            Option(
                ("--warn-above",),
                "Warn about a plan that needs more than this share of the GPU's memory.",
                "SHARE",
                values.share,
            ),
            Option(
                ("--uncertain",),
                "Warn about a plan whose interval crosses the limit, or fail it [default: warn].",
                choices=UNCERTAIN,
            ),
            Option(
                ("--unpacked",),
                "Warn about a plan that fits only with shorter rows, or fail it [default: as --uncertain].",
                choices=UNCERTAIN,
            ),
        ),
    ),
    (
        "Rules",
        (
            Option(
                ("--profile",),
                "gate: rules that may stop a merge (default); review: also what a reviewer asks; research: all rules.",
                choices=PROFILES,
            ),
            Option(
                ("--select",),
                "Use only these rules, by code, prefix or name: MEM1,MEM203.",
                "RULES",
                values.selectors,
                repeatable=True,
                completion="rules",
            ),
            Option(
                ("--ignore",), "Leave out these rules.", "RULES", values.selectors, repeatable=True, completion="rules"
            ),
            Option(
                ("--extend-select",),
                "Add these rules, even if the configuration ignores them.",
                "RULES",
                values.selectors,
                repeatable=True,
                completion="rules",
            ),
            Option(("--fail-on",), "The lowest severity that fails the run [default: error].", choices=FAIL_ON),
            Option(("--no-suppressions",), "Ignore the comments in plans that hide findings (for gates)."),
        ),
    ),
    (
        "Output",
        (
            Option(
                ("--verbose", "-v"),
                "Show the memory budget, the largest tensors, every default that was used, and all remedies.",
            ),
            Option(("--quiet", "-q"), "Show only findings."),
            Option(
                ("--format",),
                "full (default), concise, brief, github, markdown, html, pdf, story, json, jsonl, csv, sarif, junit, "
                "gitlab, checkstyle or rdjson. =FILE writes to a file. Repeatable.",
                "FORMAT[=FILE]",
                lambda written: (values.output(written),),
                repeatable=True,
                completion="formats",
                field="outputs",
            ),
            Option(("--brief",), "Use the format `brief` if no --format is given (for hooks)."),
            Option(("--statistics",), "Add the number of findings per rule, and the fullest plans."),
            Option(("--color",), "Colours on stdout.", choices=values.COLORS, default="auto"),
        ),
    ),
    (
        "Git and CI",
        (
            Option(
                ("--from-ref",),
                "Check only plans that changed since this git ref; of a branch, since its merge base.",
                "REF",
            ),
            Option(
                ("--config-from-ref",),
                "Read the configuration and the baseline from this git ref, not from the working tree (for gates).",
                "REF",
            ),
            Option(
                ("--baseline",),
                "Hide the findings that this baseline accepts; an empty value uses no baseline.",
                "FILE",
            ),
            Option(("--shard",), "Check the I-th of N parts of the plan files (for a CI matrix).", "I/N", values.shard),
            Option(
                ("--jobs", "-j"),
                "Check in N processes where there are many plans; auto: one per core [default: 1].",
                "N",
                values.jobs,
                default="1",
            ),
            Option(("--no-cache",), "Check every plan again, and keep no result."),
            Option(("--exit-zero",), "Exit 0 even if plans fail."),
        ),
    ),
    (
        "Fix",
        (
            Option(("--fix",), "Make every change that has one right answer (marked [*]), then check."),
            Option(
                ("--unsafe-fixes",),
                "With --fix or --diff: also make the first remedy of each plan that fails; it never changes the GPUs.",
            ),
            Option(("--diff",), "Show what --fix would change, and write nothing; exit 1 if it would change a file."),
        ),
    ),
)
"""The options by what they are about, as ``--help`` shows them."""
CHECK_OPTIONS = tuple(option for _, section in CHECK_SECTIONS for option in section)
