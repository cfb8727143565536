"""Sums in a launch script are worked out as the shell does, and what is none stays as it is written."""

from __future__ import annotations

import pytest

from memcheck.configs.arguments import load_arguments
from memcheck.configs.shell_values import worked_out

VARIABLES = {"gpus": "8", "batch": "2", "name": "llama"}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("$(expr 16 / $gpus)", 2),
        ("`expr $gpus \\* 4`", 32),
        ("$((64 / gpus / batch))", 4),
        ("$(( (gpus + 3) / 2 ))", 5),
        ("$((${gpus}/(2*batch)))", 2),
        ("$((7 - gpus / 3 * 2))", 3),
    ],
)
def test_a_sum_is_its_value(written: str, value: int) -> None:
    """In place, and as long as before, so that places in the line stay true."""
    line = f"--steps {written} --more 1"
    found = worked_out(line, VARIABLES, ())
    assert found.split() == ["--steps", str(value), "--more", "1"]
    assert len(found) == len(line)


@pytest.mark.parametrize(
    "written",
    [
        "$((gpus / 0))",
        "$((batch - gpus))",
        "$((gpus ** 2))",
        "$((name * 2))",
        "$((unset * 2))",
        "$((gpus))x",
        "$((9999999999999999 * 9999999999999999))",
        "$(expr $gpus / $(nproc))",
        "$((" + "(" * 200 + "1" + ")" * 200 + "))",
        "$((1" + " " * 200 + "))",
        "$((1 +))",
        "$(())",
    ],
)
def test_anything_else_stays(written: str) -> None:
    """Nothing is guessed: no sum, no plain value, too long, too large, or below zero."""
    assert worked_out(f"--steps {written}", VARIABLES, ()) == f"--steps {written}"


def test_what_hangs_on_a_branch_is_not_worked_out() -> None:
    """Which value the variable has is not known."""
    assert worked_out("$((gpus * 2))", VARIABLES, {"gpus"}) == "$((gpus * 2))"


def test_a_script_may_hold_them_in_variables() -> None:
    """As ms-swift's examples do, and as scripts that divide a global batch do; other commands stay whole words."""
    script = """\
gpus=4
steps=$((64 / gpus / 2))
swift sft --gradient_accumulation_steps $(expr 16 / $gpus) --save_steps "$steps" --run_name $(date +%s)
"""
    values = load_arguments("train.sh", script).values
    assert values == {"gradient_accumulation_steps": "4", "save_steps": "8", "run_name": "$(date +%s)"}


def test_sums_in_square_brackets_are_sums() -> None:
    """The shell's old spelling."""
    assert load_arguments("run.sh", "N=8\nrun --steps $[128/(2*$N*4)] --tp $[ N / 2 ]").values == {
        "steps": "2",
        "tp": "4",
    }
