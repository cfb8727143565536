"""Lines that are read without click."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcheck.cli import check
from memcheck.cli.app import run_app
from memcheck.cli.check import command
from memcheck.cli.check_options import CHECK_OPTIONS, Option
from memcheck.cli.options import CheckOptions
from memcheck.cli.plain import parse_plain
from memcheck.errors import UsageError

PLAIN = [
    ["check"],
    ["check", "a.yaml"],
    ["check", "-"],
    ["check", "plans", "b.yml", "-q"],
    ["check", "--skip-unmarked", "--allow-empty", "a.yaml"],
    ["check", "--exit-zero", "--", "--odd name.yaml", "-"],
    ["check", *(name for option in CHECK_OPTIONS if option.flag for name in option.names)],
    ["check", "a.yaml", "--format", "json", "--format=concise", "--format", "markdown=s.md"],
    ["check", "--fail-on", "warning", "--fail-above", "90%", "--warn-above=0.8", "a.yaml", "--fail-above=0.5"],
    ["check", "--select", "MEM1, MEM2", "--select=MEM3", "--ignore", "wasted-memory", "a.yaml"],
    ["check", "--color=never", "--config", "ci.toml", "--stdin-filename", "x.yaml", "-"],
    ["check", "--extend-select", "MEM1", "--extend-select=MEM2,MEM3", "--show-settings", "a.yaml"],
    ["check", "--baseline", "b.json", "--baseline=", "a.yaml"],
    ["check", "--config=", "--select", "", "a.yaml"],
    ["check", "--from-ref", "origin/main", "plans"],
    ["check", "--no-suppressions", "plans"],
    ["check", "--jobs", "4", "-j", "auto", "plans"],
    ["check", "--shard", "1/4", "--shard=4/4", "plans"],
    ["check", "--gpu", "h200", "--", "torchrun", "--nproc_per_node", "8", "sft.py", "--max_length", "2048"],
    ["check", "--", "accelerate", "launch", "train.py"],
    ["check", "--gpu", "h200", "a.yaml", "--", "bash", "run.sh", "-x"],
    ["check", "--", "plans.yaml", "-x", "--", "-y"],
    ["check", "--", "plans"],
    ["check", "--config-from-ref", "origin/main", "--config-from-ref=v1", "plans"],
]


WRITTEN = {
    "FORMAT[=FILE]": ("json", "csv=report.csv", "jsn", "pdf"),
    "SHARE": ("90%", "0.5", "1", "90", ""),
    "RULES": ("MEM1,MEM203", " wasted-memory ", ""),
    "I/N": ("1/1", "2/3", "0/3", "4/3", "1/0", "-1/3", "a/b", "3", "1/9999999999", ""),
    "N": ("1", "auto", "60", "61", "0", "-1", "two", "1" * 5000, ""),
    "MAPPING": ("per_sample: 2, width: 64, height: 48", "{patches: 8, tokens: 2}", "width: 64", "[", ""),
    "NAME": ("h200", "H100", "h2000", "megatron"),
    "GIB": ("1024", "0.5", "0", "nan", "inf", "many", ""),
    "FORMAT": ("axolotl", "other", ""),
    "NAME=VALUE": ("TP=8", "TP=", "TP", "1=2", ""),
    "KEY=VALUE": ("training.method=lora", "training.framework_version=4.40", "a=[", "a=.nan", "a", ""),
    "VERSION": ("4.57", "v0.2.2.dev1", "latest", "4.57 "),
}
"""Values to write by what help says for them, good and bad; any other takes a path."""


def by_click(arguments: list[str]) -> CheckOptions | None:
    """What click makes of a line; None when it refuses it."""
    seen: list[CheckOptions] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "run_check", lambda options: seen.append(options._replace(arguments=())) or 0)
        try:
            run_app(arguments)
        except UsageError:
            return None
    return seen[0]


def by_hand(arguments: list[str]) -> CheckOptions | None:
    """What the fast reader makes of a line."""
    found = parse_plain(arguments)
    return found and found._replace(arguments=())


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_both_readers_agree(arguments: list[str]) -> None:
    """A plain line means the same to the fast reader and to click."""
    found = by_hand(arguments)
    assert found is not None
    assert found == by_click(arguments)


@pytest.mark.parametrize("option", CHECK_OPTIONS, ids=lambda option: option.names[0])
def test_both_readers_read_every_option_alike(option: Option) -> None:
    """Each option under each name, with each value, in the spellings of its name and twice, sets the same or is refused."""
    written = (*option.choices, "other") if option.choices else WRITTEN.get(option.metavar, ("a b.toml", ""))
    for name in option.names:
        lines = [[name], [name, name], [f"{name}=x"]] if option.flag else [[name]]
        if not option.flag:
            lines += [[name, each] for each in written]
            lines += [[f"{name}={each}", name, each] for each in written if name.startswith("--")]
        read = [(by_hand(["check", *line]), by_click(["check", *line])) for line in lines]
        assert all(hand == click for hand, click in read), name
        assert any(hand is not None and hand != CheckOptions() for hand, _ in read), name


def words(option: Option) -> st.SearchStrategy[list[str]]:
    """One option as it may be written."""
    if option.flag:
        return st.sampled_from([[name] for name in option.names])
    values = st.sampled_from(option.choices or WRITTEN.get(option.metavar, ("a b.toml", "-", "")))
    return st.tuples(st.sampled_from(option.names), values, st.booleans()).map(
        lambda each: [f"{each[0]}={each[1]}"] if each[2] else [each[0], each[1]]
    )


PARTS = st.one_of(st.sampled_from([["a.yaml"], ["-"], ["--"], ["plans"]]), *map(words, CHECK_OPTIONS))


@pytest.mark.slow
@given(st.lists(PARTS, max_size=6))
def test_both_readers_read_any_line_alike(parts: list[list[str]]) -> None:
    """Whatever order options, paths and separators have: what the fast reader takes, click reads alike."""
    line = ["check", *(word for part in parts for word in part)]
    assert by_hand(line) in (None, by_click(line))


def test_help_is_made_of_the_table() -> None:
    """``check --help`` has each option's names, its placeholder or words, and its sentence, in the table's order."""
    text = " ".join(command.get_help(click.Context(command, info_name="check", terminal_width=400)).split())
    place = 0
    for option in CHECK_OPTIONS:
        names = ", ".join(sorted(option.names, key=len))
        value = f"[{'|'.join(option.choices)}]" if option.choices else option.metavar
        place = text.index(" ".join(filter(None, (names, value, option.help))), place)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["estimate", "a.yaml"],
        ["check", "--format", "jsn"],
        ["check", "--format"],
        ["check", "--fail-above", "90"],
        ["check", "--form", "json"],
        ["check", "--quiet=1"],
        ["check", "-j=1"],
        ["check", "-qq"],
        ["check", "--gpu", "h2000"],
        ["check", "--help"],
        ["check", "-x"],
        ["chekc"],
    ],
    ids=" ".join,
)
def test_every_other_line_is_for_click(arguments: list[str]) -> None:
    """Help, other commands, abbreviations and mistakes are left to the full reader."""
    assert parse_plain(arguments) is None
