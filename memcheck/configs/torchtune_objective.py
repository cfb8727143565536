"""What torchtune's configs say of an objective: preference pairs with a reference model, or a teacher's logits."""

from __future__ import annotations

from memcheck.configs import torchtune_keys as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft
from memcheck.configs.torchtune_keys import KEYS
from memcheck.configs.torchtune_models import builder_of
from memcheck.configs.trainer_parts import text

OBJECTIVE, TEACHER = "training.objective", "training.teacher.model.name"
DIVERGENCE, TAUGHT_BY = f"kd_loss.{keys.COMPONENT}", f"teacher_model.{keys.COMPONENT}"


def objective(draft: Draft) -> None:
    """``loss`` of the recipes over preferences; ``kd_loss`` and ``teacher_model`` of those that distill."""
    config, path = draft.config, f"loss.{keys.COMPONENT}"
    if text(draft, path).rpartition(".")[2] == keys.PREFERENCES:
        draft.set(f"{OBJECTIVE}.name", "dpo", path)
        full = draft.value("training.method") == "full"
        why = "full training's recipe holds a second model" if full else "the model without its adapters"
        draft.assume("training.reference", "resident" if full else "adapter-off", why)
    if config.has(DIVERGENCE) or config.has(TAUGHT_BY):
        _distilled(draft)
    config.see(*(each for each in config.values if each.startswith(("kd_loss.", "teacher_model."))))


def _distilled(draft: Draft) -> None:
    config = draft.config
    path, kind = DIVERGENCE, text(draft, DIVERGENCE).rpartition(".")[2]
    beta = KEYS.words["divergences"].get(kind)
    if beta is None:
        message = f"`{path}: {kind}`: the job is distillation by a divergence that has no memory model here"
        draft.refuse(path if kind else TAUGHT_BY, message, parts.STATE_IT.format(OBJECTIVE), (OBJECTIVE,))
    else:
        draft.set(f"{OBJECTIVE}.name", "distill", path)
        draft.set(f"{OBJECTIVE}.beta", beta, path)
    component = text(draft, TAUGHT_BY)
    builder = builder_of(component)
    if builder.model and not builder.adapter:
        draft.set(TEACHER, builder.model, TAUGHT_BY)
    else:
        message = f"`{component}` is an unknown model: no builder of a teacher that the catalog has a model for"
        place = TAUGHT_BY if component else path
        draft.refuse(place, message, "name the model that it builds", ("training.teacher", TEACHER))
    mine, theirs = (config.values.get(f"{name}.{keys.CHUNKS}", 8) for name in ("loss", "kd_loss"))
    if mine != theirs:
        message = f"`kd_loss.{keys.CHUNKS}: {theirs}`: the recipe stops at other chunks than its loss's {mine}"
        place = f"kd_loss.{keys.CHUNKS}" if config.has(f"kd_loss.{keys.CHUNKS}") else f"loss.{keys.CHUNKS}"
        draft.refuse(place, message, "write the same number in both")
