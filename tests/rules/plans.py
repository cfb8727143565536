"""Plans for the rules' tables, as short as the format allows."""

from __future__ import annotations

from typing import Any

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents, read_plan
from memcheck.rules.checks import CHECKS
from memcheck.rules.run import check_layout, make_context, rules_for
from memcheck.rules.types import RuleContext

PLAN = """\
memcheck: 1
model: {model}
hardware: {{gpu: {gpu}, gpus_per_node: {gpus_per_node}, nodes: {nodes}}}
parallelism: {{{parallelism}}}
{job}
policy: {{fail_above: 100%, warn_above: 100%}}
"""


def document(
    parallelism: str = "",
    training: str = "",
    *,
    model: str = "llama-3.1-8b",
    gpu: str = "h100-80gb",
    gpus_per_node: int = 8,
    nodes: int = 1,
    inference: str = "",
    defaults: str = "micro_batch_size: 1, sequence_length: 4096",
) -> Document:
    """A plan with these keys."""
    step = ", ".join(part for part in (defaults, training) if part)
    job = f"inference: {{{inference}}}" if inference else f"training: {{{step}}}"
    text = PLAN.format(model=model, gpu=gpu, gpus_per_node=gpus_per_node, nodes=nodes, parallelism=parallelism, job=job)
    (found,) = load_documents("plan.yaml", text.encode())
    return found


def layout_findings(*args: str, **kwargs: Any) -> list[Finding]:
    """What the rules of every profile that need no estimate say about a plan with these keys."""
    source = document(*args, **kwargs)
    plan, findings = read_plan(source)
    assert plan is not None, [f.message for f in findings]
    context = make_context(plan, source, resolve(plan, FRAMEWORKS, base_dir="."), fail_above=1.0, warn_above=1.0)
    assert overlooked(context) == []
    return check_layout(context, rules_for(lambda code: True))[0]


def overlooked(context: RuleContext) -> list[str]:
    """Rules that would find something and are not asked, because what they wait for is not said: there must be none."""
    return [each.code for each in CHECKS if not each.when(context) and any(each.rule.check(context))]


def found(code: str, *args: str, **kwargs: Any) -> list[Finding]:
    """The findings of one of those rules."""
    return [f for f in layout_findings(*args, **kwargs) if f.code == code]
