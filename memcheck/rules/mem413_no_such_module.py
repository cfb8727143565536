"""A module that the plan names is not in the model.

## What it does

Looks up the names under `training.lora.target_modules`, `training.freeze` and of the modules to recompute
(`training.activation_checkpointing.modules`, Megatron's `recompute_modules`). A target is the path or the last part of
a linear layer inside a block, or `lm_head` where its adapters have a memory model; embeddings get no adapters here. A
frozen part is a path inside a block or any part of one. What can be recomputed is Megatron's own list, or under
`pytorch` the modules of a layer in torch's `checkpoint_wrapper`; other frameworks recompute whole blocks.

## Why it matters

A misspelt name trains, freezes or recomputes nothing, and the prediction would be of another job.
PEFT stops when no target is found. It ignores a target that is not found when others are: that is a warning.
Megatron stops.
PEFT also stops where a target, `all-linear` among them, reaches the `out_proj` of a Mamba, Mamba-2, Falcon-Mamba,
Falcon-H1 or Nemotron-H mixer.

## Example

    training: {method: lora, lora: {target_modules: [q_prj]}}      # q_proj

## How to fix

Use the model's own names; the finding lists them, or those that are close.

## Options

None.

## Source

PEFT `tuners/tuners_utils.py` (`inject_adapter`, "Target modules ... not found in the base model";
`_check_lora_target_modules_mamba`, "Module 'out_proj' is incompatible with Mamba-based models");
Megatron-core `transformer/transformer_config.py` (`recompute_modules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.autograd.context import Adapter, adapts, is_frozen
from memcheck.frameworks.stacked_adapters import EXPERT_NAMES, names_parameter, stacked_experts
from memcheck.job.framework import Framework
from memcheck.job.types import Lora, TrainingJob
from memcheck.models.parameters import block_tensors, tower_runs
from memcheck.models.types import Moe
from memcheck.plan.finding import Finding
from memcheck.rules.budget import close_to, listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import names_modules

PART = r"embed|head|norm|layers:\d+-\d+"
SIDES = {"vision": "vision", "projector": "vision", "language": "vision", "audio": "others", "encoder": "encoder"}
"""Parts of a multimodal model, and the field of its architecture that has them."""
HEAD = "lm_head"
PRICED_LOSSES = ("standard", "in-place", "fused-linear")
"""Losses that are estimated with an adapter of the head. Losses over whole logits use the adapter. Fused losses contain
the head and read its weight alone: the adapter is resident, but not used (Liger ``lce_forward``, cut-cross-entropy
``lce``).
"""
REFUSED_FAMILIES = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
REFUSED_LEAF = "out_proj"
"""What peft refuses to adapt in these families, whose kernels read its weight directly."""
SEARCHED = 100
"""How many unknown names get a search for a close name. Further unknown names get the list of known ones."""
RECOMPUTED = ("core_attn", "gdn_norm_out", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per name that nothing in the model has."""
    job, framework = context.training, context.framework
    if job is None or framework is None:
        return
    yield from _recomputed(context, job, framework)
    if job.lora is not None and job.lora.target_modules != "all-linear" and not job.lora.reach:
        yield from _adapted(context, job, framework, job.lora)
    if job.lora is not None and HEAD in dict(job.lora.reach).get("language", ()):
        yield from _with_head(context, _unpriced_head(job, framework))
    if job.lora is not None and framework.runs_transformers and not framework.adapters.are_own_code:
        yield from _refused_by_peft(context, job.lora)
    if job.lora is not None and job.lora.target_parameters:
        yield from _adapted_parameters(context, job.lora.target_parameters)
    if job.freeze:
        yield from _frozen(context, job.freeze)


def _recomputed(context: RuleContext, job: TrainingJob, framework: Framework) -> Iterator[Finding]:
    """Yield findings on modules to recompute that the model does not have."""
    place = "/training/activation_checkpointing/modules"
    parts = framework.checkpointable_modules
    if job.checkpointing.modules and framework.selective_recompute != "modules" and not parts:
        yield RULE.finding(
            context,
            f"recomputing modules of a block under {framework.name} is not modelled",
            place,
            help="remove `modules`, or say which blocks with `every_n_layers`",
            related=(("the framework", "/training/framework"),),
        )
        return
    named = _places(job.checkpointing.modules, place)
    option = job.option("recompute_modules")
    if isinstance(option, tuple):
        named += _places(tuple(map(str, option)), "/training/options/recompute_modules")
    elif isinstance(option, str):
        named += [(name, "/training/options/recompute_modules") for name in option.replace(",", " ").split()]
    for name, pointer in named:
        known = parts or RECOMPUTED
        if name not in known:
            help = close_to(name, known) or f"it knows {listed(known)}"
            yield RULE.finding(context, f"{framework.name} has no module `{name}` to recompute", pointer, help=help)


def _unpriced_head(job: TrainingJob, framework: Framework) -> str:
    """Say where adapters of the head have no memory model; empty where they have one."""
    if not framework.adapters.can_target_head:
        return f"under {framework.name}"
    if job.loss.kind not in PRICED_LOSSES:
        return f"with a {job.loss.kind} loss"
    if job.objective.name != "sft" or job.objective.loss_code:
        return f"under the loss of {job.objective.name} that the trainer takes"
    if job.layout.tensor > 1:
        return "under tensor parallelism"
    return "with a trained copy of it" if job.lora is not None and HEAD in job.lora.modules_to_save else ""


def _with_head(context: RuleContext, why: str) -> Iterator[Finding]:
    """Yield a pattern that reaches the head, and where that has no memory model."""
    if why:
        help = "leave it out of the pattern, or train a whole copy of it: `lora.modules_to_save: [lm_head]`"
        place = "/training/lora/target_modules"
        yield RULE.finding(context, f"adapters of the head are not modelled {why}", place, help=help)


def _adapted(context: RuleContext, job: TrainingJob, framework: Framework, lora: Lora) -> Iterator[Finding]:
    """Yield findings on LoRA targets that no module of the model has."""

    def matches(name: str, module: str) -> bool:
        return adapts(Adapter(rank=lora.rank, targets=name, dtype=lora.dtype), module)

    targets, place = lora.target_modules, "/training/lora/target_modules"
    named = [(targets, place)] if isinstance(targets, str) else _places(targets, place)
    modules = framework.adapter_modules or _modules(context, linear=True)
    if context.architecture is not None and not framework.adapter_modules:
        experts = [block.mlp for block, _ in context.architecture.blocks if isinstance(block.mlp, Moe)]
        modules += (*EXPERT_NAMES, "gate") if any(not moe.adaptable for moe in experts) else ()
        if any(name == HEAD for name, _ in named):
            if why := _unpriced_head(job, framework):
                places = [place for name, place in named if name == HEAD]
                help = "leave it out, or train a whole copy of it: `lora.modules_to_save: [lm_head]`"
                yield RULE.finding(context, f"adapters of the head are not modelled {why}", places[0], help=help)
                named = [each for each in named if each[0] != HEAD]
            elif context.architecture.head:
                modules += (HEAD,)
    message, severity = "no linear layer of the blocks is called `{}`", ""
    peft = framework.runs_transformers and not framework.adapters.are_own_code
    if peft and any(matches(name, module) for name, _ in named for module in modules):
        message, severity = f"{message}: peft ignores it, because other targets are found", "warning"
    yield from _missing(context, named, modules, matches, message, severity=severity)


def _refused_by_peft(context: RuleContext, lora: Lora) -> Iterator[Finding]:
    """Yield targets that peft finds and stops at."""
    a = context.architecture
    if a is None or a.model_type not in REFUSED_FAMILIES:
        return
    place, targets = "/training/lora/target_modules", lora.target_modules
    named = [(targets, place)] if isinstance(targets, str) else _places(targets, place)
    if lora.reach:
        named = [(name, place) for name in dict(lora.reach).get("language", ())]
    modules = _modules(context, linear=True)
    refused = [module for module in modules if module.rpartition(".")[2] == REFUSED_LEAF]
    others = sorted({module.rpartition(".")[2] for module in modules} - {REFUSED_LEAF})
    for name, pointer in named:
        adapter = Adapter(rank=lora.rank, targets=name, dtype=lora.dtype)
        if any(adapts(adapter, module) for module in refused):
            yield RULE.finding(
                context,
                f"`{name}` reaches `{REFUSED_LEAF}`, at which peft stops in {a.model_type} models",
                pointer,
                help=f"name others: {listed(others)}",
                related=(("the model", "/model"),),
            )


def _adapted_parameters(context: RuleContext, targets: tuple[str, ...]) -> Iterator[Finding]:
    """Only stacked experts are modelled as adapted parameters."""
    blocks = context.architecture.blocks if context.architecture is not None else ()
    experts = [block.mlp for block, _ in blocks if isinstance(block.mlp, Moe)]
    known = tuple(dict.fromkeys(t.name for moe in experts for t in stacked_experts(moe)))
    for name, pointer in _places(targets, "/training/lora/target_parameters"):
        if context.architecture is None or any(names_parameter((name,), each) for each in known):
            continue
        help = f"there are {listed(known)}" if known else "name linear layers in `target_modules`"
        message = f"no stacked experts of the blocks are called `{name}`"
        yield RULE.finding(context, message, pointer, help=help, related=(("the model", "/model"),))


def _frozen(context: RuleContext, freeze: tuple[str, ...]) -> Iterator[Finding]:
    """Yield findings on frozen names that no module of the model has."""

    def matches(name: str, module: str) -> bool:
        return is_frozen(module, (name,))

    import re

    sides = [name for name, field in SIDES.items() if getattr(context.architecture, field, None)]
    resting = {other.part for other in context.architecture.others} if context.architecture is not None else set()
    sides += [name for name in SIDES if name not in sides and (name in resting or (name == "language" and resting))]
    known = [n for n in freeze if re.fullmatch(PART, n) or n in sides]
    named = [(n, pointer) for n, pointer in _places(freeze, "/training/freeze") if n not in known]
    modules = _modules(context, linear=False)
    others = [*PART.split("|")[:3], *sides]
    yield from _missing(context, named, modules, matches, "no module of the blocks is called `{}`", others)


def _missing(
    context: RuleContext,
    named: list[tuple[str, str]],
    modules: tuple[str, ...],
    matches: Callable[[str, str], bool],
    message: str,
    others: list[str] | None = None,
    severity: str = "",
) -> Iterator[Finding]:
    searched = 0
    for name, pointer in named if modules else ():
        if any(matches(name, module) for module in modules):
            continue
        leaves = [*(others or ()), *dict.fromkeys(module.rpartition(".")[2] for module in modules)]
        searched += 1
        close = close_to(name, leaves) if searched <= SEARCHED else ""
        help = close or f"there are {listed(leaves)}"
        said, related = message.format(name), (("the model", "/model"),)
        yield RULE.finding(context, said, pointer, help=help, related=related, severity=severity)


def _modules(context: RuleContext, *, linear: bool) -> tuple[str, ...]:
    """Return paths inside the blocks; ``linear``: of linear layers only. None for a model that is only roughly
    known.
    """
    blocks = context.architecture.blocks if context.architecture is not None else ()
    tensors = [tensor for block, _ in blocks for tensor in block_tensors(block)]
    if linear and context.architecture is not None:
        tensors += [tensor for run, _, _ in tower_runs(context.architecture) for tensor in run]
    names = [t.name.removesuffix(".weight").removesuffix(".bias") for t in tensors if t.linear or not linear]
    return tuple(dict.fromkeys(names))


def _places(names: tuple[str, ...], pointer: str) -> list[tuple[str, str]]:
    return [(name, f"{pointer}/{i}") for i, name in enumerate(names)]


RULE = Rule(
    code="MEM413",
    name="no-such-module",
    severity="error",
    summary="A module that the plan names is not in the model.",
    doc=__doc__,
    check=check,
    when=names_modules,
)
