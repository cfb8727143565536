"""The report for people."""

from __future__ import annotations

import re

import pytest

from memcheck.edge.screen import Screen, width
from memcheck.plan.finding import Finding
from memcheck.report.full import render
from memcheck.report.screens import breakdown
from memcheck.rules.result import PlanResult, Report, Unreadable, defect_result
from tests.report import samples

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

OVER = """\
error[MEM101] exceeds-capacity: needs 54.31 GiB per GPU, 14.93 GiB more than an a100-40gb has (39.38
  GiB)
  --> plans/llama-3.1-8b-docs-sft.yaml:11:3
   |
 5 |   gpu: a100-40gb
   |        --------- 39.38 GiB usable of 40 GB
...
11 |   micro_batch_size: 4
   |   ^^^^^^^^^^^^^^^^^^^
12 |   sequence_length: 8192
   |                    ---- activations grow with this
   |

memory of one GPU            GiB  of capacity
parameters                  3.80         9.7% ████                                  │
gradients                   7.60        19.3%     ███████                           │
master weights              3.80         9.7%            ████                       │
optimizer states            7.60        19.3%                ████████               │
activations                24.44        62.1%                        ███████████████│████████
logits and loss             4.34        11.0%                                       │        ████
communication buffers       0.54         1.4%                                       │            █
context and NCCL            2.17         5.5%                                       │             ██
────────────────────────────────────────────────────────────────────────────────────────────────────
device memory needed       54.31       137.9% ██████████████████████████████████████│███████████████
capacity of a100-40gb      39.38       100.0%                                       │
missing                    14.93        37.9%

peak: backward, during softmax backward of layer 31
interval: between 53.2 and 55.4 GiB (95%)

largest live tensors at the peak (GiB)
7.00  32 x  mlp.act_fn(gate) * up  [4, 8192, 3584] bf16  activations
3.74   1 x  exp_avg                [2007567360] fp32     optimizer states
7.48   1 x  main_grad              [2007567360] fp32     gradients

assumed: hardware.nodes: 1 (default); parallelism.sequence: true (default of megatron when tensor >
         1); training.attention: flash, training.loss: standard, training.clip_grad_norm: true
         (default of megatron)

remedies, each re-computed                            of capacity      time
  same hardware, same result
  1. training.activation_checkpointing: none -> full  137.9% -> 79.2%  +31%
  2. training.micro_batch_size: 4 -> 1                137.9% -> 71.4%  +6%
     training.gradient_accumulation_steps: 1 -> 4
  other hardware
  3. hardware.gpu: a100-40gb -> h100-80gb             137.9% -> 68.9%  -40%, other hardware

help: full recompute is the cheapest change that makes it fit

more: memcheck explain MEM101
checked 1 plan: 0 passed, 1 failed (1 error)
1 of 1 finding can be fixed with --fix --unsafe-fixes
"""

ONE_SCREEN = """\
error[MEM101] exceeds-capacity: needs 54.31 GiB per GPU, 14.93 GiB more than an a100-40gb has (39.38
  GiB)
  --> plans/llama-3.1-8b-docs-sft.yaml:11:3
 5 |   gpu: a100-40gb         <- 39.38 GiB usable of 40 GB
11 |   micro_batch_size: 4
   |   ^^^^^^^^^^^^^^^^^^^
12 |   sequence_length: 8192  <- activations grow with this
      ███████████████████████│████████████ 137.9%   54.31 of 39.38 GiB, between 53.2 and 55.4
remedies, each re-computed: of capacity, time, change
  1. 79.2%  +31%  training.activation_checkpointing: none -> full
  2. 71.4%   +6%  training.micro_batch_size: 4 -> 1, training.gradient_accumulation_steps: 1 -> 4
  3. 68.9%  -40%  hardware.gpu: a100-40gb -> h100-80gb (other hardware)
help: `--fix --unsafe-fixes` writes remedy 1; `memcheck suggest` finds more

more: memcheck explain MEM101; -v shows everything
checked 1 plan: 0 passed, 1 failed (1 error)
1 of 1 finding can be fixed with --fix --unsafe-fixes
"""

PASSED = """\
pass  llama-3.1-8b-docs-sft  plans/llama-3.1-8b-docs-sft.yaml
      ██████████████████████████░░░░░░│░░░  71.4%   28.10 of 39.38 GiB, between 27.5 and 28.7
      4 x a100-40gb; megatron; peak in backward: activations 12.64, gradients 3.93

checked 1 plan: 1 passed, 0 failed
"""


def failed_plan() -> PlanResult:
    return samples.result("failed", (samples.over(),), estimate=samples.estimate())


def test_plan_that_does_not_fit() -> None:
    """The diagnostic, its budget, the peak, the largest tensors, the assumptions, the remedies, where to read on."""
    assert render(samples.report(failed_plan()), Screen(100, verbose=True)) == OVER


def test_one_screen_of_a_plan_that_does_not_fit() -> None:
    """The diagnostic, the bar, the remedies, one line of help; then where to read more and what can be fixed."""
    assert render(samples.report(failed_plan()), Screen(100)) == ONE_SCREEN


def test_plan_that_fits() -> None:
    """One compact block."""
    assert render(samples.report(samples.result()), Screen(100)) == PASSED


def test_plan_without_estimate_has_no_budget() -> None:
    """A plan that could not be estimated shows its findings and nothing else."""
    text = render(samples.report(samples.broken()), Screen(100))
    assert text.startswith("error[MEM010] unknown-key: ")
    assert "GiB" not in text
    assert text.endswith("checked 1 plan: 0 passed, 1 failed (1 error)\n")


def test_defect_has_no_page() -> None:
    """A failure of memcheck itself is no rule, so nothing more can be read about it."""
    text = render(samples.report(defect_result("a.yaml", 0, "a", KeyError("boom"))), Screen(100))
    assert text.startswith(
        "error[MEM000] defect: memcheck itself failed on this plan: KeyError: 'boom'\n --> a.yaml:1:1\n"
    )
    assert "memcheck explain" not in text


def test_budget_is_shown_once() -> None:
    """A second memory finding of the same plan does not repeat the rows."""
    other = samples.over()._replace(code="MEM104", name="interval-crosses-limit", remedies=())
    plan = samples.result("failed", (samples.over(), other), estimate=samples.estimate())
    assert render(samples.report(plan), Screen(100, verbose=True)).count("device memory needed") == 1
    assert render(samples.report(plan), Screen(100)).count("54.31 of 39.38 GiB") == 1


def test_finding_about_something_else_leaves_the_block() -> None:
    """A layout finding comes before the plan's compact block, not before a budget."""
    layout = Finding("MEM207", "tensor-across-nodes", "warning", "16 spans 2 nodes", samples.at(8, 11, 12))
    text = render(samples.report(samples.result("passed", (layout,))), Screen(100))
    assert text.index("warning[MEM207]") < text.index("pass  llama-3.1-8b-docs-sft")
    assert "device memory needed" not in text


@pytest.mark.parametrize("unicode", [True, False], ids=["utf8", "ascii"])
@pytest.mark.parametrize("columns", [60, 72, 80, 100, 120, 160, 200])
def test_nothing_is_wider_than_the_screen(columns: int, unicode: bool) -> None:
    """From 60 to 200 columns, no line of any screen runs over the edge."""
    screen = Screen(columns, unicode=unicode)
    pipeline = samples.result(estimate=samples.estimate(54.31, ranks=12))
    texts = [
        render(samples.mixed(), screen),
        render(samples.mixed(), screen._replace(verbose=True)),
        breakdown(pipeline, pipeline.estimate, screen, formulas=True),
    ]
    for text in texts:
        assert max(width(line) for line in text.splitlines()) <= columns


@pytest.mark.parametrize("columns", [60, 100])
def test_colour_changes_nothing_but_colour(columns: int) -> None:
    """With escapes removed, the coloured text is the plain one; only red, green, magenta and cyan are used."""
    plain = render(samples.mixed(), Screen(columns))
    colored = render(samples.mixed(), Screen(columns, color=True))
    assert ESCAPES.sub("", colored) == plain
    codes = {code for match in ESCAPES.findall(colored) for code in match[2:-1].split(";")}
    assert codes <= {"0", "1", "2", "31", "32", "35", "36"}


def test_ascii_screen_gets_ascii() -> None:
    """Where the encoding has no block characters, bars are drawn with number signs."""
    text = render(samples.mixed(), Screen(100, unicode=False))
    assert text.isascii()
    assert "####" in text


def test_quiet_shows_findings_only() -> None:
    """No block of a passing plan, no summary; nothing at all when nothing was found."""
    text = render(samples.mixed(), Screen(100, quiet=True))
    assert "error[MEM101]" in text
    assert "llama-3.1-8b-docs-sft  plans/" not in text
    assert "checked" not in text
    assert render(samples.report(samples.result()), Screen(100, quiet=True)) == ""


def test_unreadable_paths_are_counted() -> None:
    """The last line tells of paths that were not checked."""
    text = render(Report("0.1.0", (samples.result(),), (Unreadable("b.yaml", "Permission denied"),)), Screen(100))
    assert text.endswith("checked 1 plan: 1 passed, 0 failed, 1 path not readable\n")


def test_user_text_cannot_drive_the_terminal() -> None:
    """Escape sequences in names, messages and source lines are shown, not obeyed."""
    evil = "\x1b]0;owned\x07"
    spoiled = samples.over()._replace(message=evil, help=evil)
    plan = samples.result("failed", (spoiled,), name=evil, sources={samples.PATH: (evil,) * 20}, path=evil)
    text = render(samples.report(plan, samples.result(name=evil, path=evil)), Screen(100))
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("used", [0.01, 0.5, 0.899, 0.95, 0.999, 1.0, 1.001, 3.0, 40.0])
def test_bars_never_lie_about_the_limit(used: float) -> None:
    """Something stands behind the capacity line exactly if the plan does not fit."""
    plan = samples.result("failed", (samples.over(),), estimate=samples.estimate(39.38 * used))
    lines = render(samples.report(plan), Screen(100, verbose=True)).splitlines()
    needed = next(line for line in lines if line.startswith("device memory needed"))
    assert needed.count("│") == 1
    assert bool(needed.rpartition("│")[2].strip()) == (plan.estimate.needed_bytes > plan.estimate.capacity_bytes)


def test_breakdown_tells_where_and_when() -> None:
    """``estimate`` shows the budget, the timeline, every pipeline rank and every assumption."""
    plan = samples.result(estimate=samples.estimate(30.0, ranks=4))
    text = breakdown(plan, plan.estimate, Screen(100), formulas=False)
    for part in (
        "llama-3.1-8b, 8,030,261,248 parameters, 4 x a100-40gb, megatron",
        "peak: backward on pipeline rank 0 of 4, during softmax backward of layer 31",
        "total: allocated 28.80, needed 30.00 GiB, between 29.4 and 30.6 GiB (95%)",
        "seen: reserved 29.30, nvidia-smi 30.00 GiB with the cache, between 29.4 and 30.6 GiB (95%)",
        "rank 3",
        "training.clip_grad_norm  true      default of megatron",
    ):
        assert part in text
    assert re.search(r"^optimizer +16\.13 +█+ +foreach temporaries$", text, re.MULTILINE)
    assert "formulas" not in text


def test_formulas_come_with_numbers_and_source() -> None:
    """``--formulas`` shows what was multiplied, the result in bytes, and who says so."""
    plan = samples.result(estimate=samples.estimate())
    text = breakdown(plan, plan.estimate, Screen(100), formulas=True)
    assert "parameters  3.74 GiB (4,015,130,624 bytes)\n  2 bytes x N / tensor\n  = 2 x 8,030,261,248 / 4\n" in text
    assert "  from Megatron-LM" in text
