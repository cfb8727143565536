"""A framework's config in the making: what of a plan is written, what is lost, and what is said elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memcheck.configs.types import KeyRow, Notice
from memcheck.job.framework import Framework
from memcheck.job.lookup import Defaults
from memcheck.job.recipe import resolve_recipe
from memcheck.job.training import resolve_checkpoint, resolve_initialization
from memcheck.job.types import TRAINERS, Layout, Lora, Recipe, TrainingJob
from memcheck.plan.types import PrecisionSpec
from memcheck.record import Record

SCRIPTS = {
    "training.objective.name": "the script: DPOTrainer, ORPOTrainer and the like",
    "training.objective.prompt_length": "the script's data",
    "training.reference": "the script: ref_model, precompute_ref_log_probs",
    "training.trainer.name": "the script",
    "training.trainer.version": "the script's environment",
    "training.head.kind": "the script: the class of the model",
    "training.head.labels": "the script: num_labels",
    "training.evaluation.micro_batch_size": "TrainingArguments: per_device_eval_batch_size",
    "training.evaluation.sequence_length": "the script's data",
    "training.evaluation.steps": "the script's data",
    "training.evaluation.logits": "TrainingArguments: prediction_loss_only",
    "training.sequences": "the script's data: packing",
}
"""What neither a launcher's config nor an engine's says."""


class ConfigWriter:
    """Takes the settings of a plan one after the other; what is never taken is reported."""

    def __init__(self, settings: dict[str, object], neutral: dict[str, object], title: str) -> None:
        self.settings = settings
        self.title = title
        self.tree: dict[str, Any] = {}
        self.notices: list[Notice] = []
        self._neutral = neutral
        self._left = dict(settings)

    def take(self, key: str) -> Any:
        """The value of a plan key, which is dealt with from now on."""
        self._left.pop(key, None)
        return self.settings.get(key)

    def number(self, key: str) -> int:
        """A whole number that another key of the config depends on; not dealt with by that."""
        value = self.settings[key]
        if not isinstance(value, int):
            raise TypeError(key)
        return value

    def put(self, path: str, value: object) -> None:
        """Write a key of the config."""
        *sections, name = path.split(".")
        table = self.tree
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value

    def lose(self, key: str, message: str) -> None:
        """The format cannot say it."""
        self._left.pop(key, None)
        self.notices.append(Notice("lost", key, message))

    def elsewhere(self, key: str, where: str) -> None:
        """Said in another file or on the command line."""
        if key in self._left:
            value = self._left.pop(key)
            if value != self._neutral.get(key):
                self.notices.append(Notice("elsewhere", key, f"{spelled(value)}: {where}"))

    def remark(self, key: str, message: str) -> None:
        """The config says more than the plan."""
        self.notices.append(Notice("remark", key, message))

    def rows(self, rows: Iterable[KeyRow]) -> None:
        """Every key that stands for exactly one key of the framework."""
        for row in rows:
            if row.key not in self._left:
                continue
            value = self.take(row.key)
            if row.kind != "word":
                self.put(row.path, listed(value))
                continue
            word = next((word for word, meaning in row.words.items() if meaning == value), None)
            if word is not None:
                self.put(row.path, word)
            elif value != self._neutral.get(row.key):
                self.lose(row.key, f"{self.title} has no word for `{value}`")

    def finish(self) -> tuple[Notice, ...]:
        """Everything that the config does not say."""
        self.elsewhere("training.expert_imbalance", "no config's: the data decides how tokens spread over experts")
        for key, value in self._left.items():
            if value != self._neutral.get(key):
                self.notices.append(Notice("lost", key, f"{self.title} cannot say `{key}: {spelled(value)}`"))
        self._left = {}
        return tuple(self.notices)


def listed(value: object) -> object:
    """Tuples as lists, which configs have."""
    return list(value) if isinstance(value, tuple) else value


def spelled(value: object) -> str:
    """A value as people read it in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(spelled, value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {spelled(each)}" for name, each in value.items()) + "}"
    return str(value)


KINDS = {
    "lost": "What this format cannot say:",
    "elsewhere": "What is said elsewhere:",
    "remark": "Remarks:",
}


class Export(Record):
    """A job for a writer."""

    job: TrainingJob
    plan: str
    """The name of the plan's file in comments."""
    model: str
    """The catalog's name of the model; empty when the plan describes an architecture of its own."""

    notices: tuple[Notice, ...] = ()
    """Plan keys that no writer can put into a config."""

    def header(self, version: str, notices: tuple[Notice, ...], sign: str = "#") -> str:
        """The comment at the top of a written config."""
        lines = [f"{sign} Written by memcheck from {self.plan} for {version}."]
        for kind, title in KINDS.items():
            found = [notice for notice in notices if notice.kind == kind]
            if found:
                lines += [sign, f"{sign} {title}"]
                lines += [f"{sign}   {notice.key}: {notice.message}" for notice in found]
        return "\n".join([*lines, ""])


def settings_of(job: TrainingJob) -> dict[str, object]:
    """Everything about a job but its model and its GPU. Keys that mean nothing in its layout are left out."""
    layout = job.layout
    found: dict[str, object] = {"hardware.nodes": layout.nodes, "hardware.gpus_per_node": layout.gpus_per_node}
    found.update((f"parallelism.{name}", value) for name, value in _layout(layout, job).items())
    training: dict[str, object] = {
        "method": job.method,
        "freeze": job.freeze,
        "micro_batch_size": job.micro_batch_size,
        "sequence_length": job.sequence_length,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "precision.recipe": job.recipe.recipe,
        "optimizer.name": job.optimizer.name,
        "optimizer.implementation": job.optimizer.implementation,
        "optimizer.offload": job.optimizer.offload,
        "activation_checkpointing.mode": job.checkpointing.mode,
        "attention": job.attention,
        "loss.kind": job.loss.kind,
        "loss.upcast": job.loss.upcast,
        "loss.keep_logits": job.loss.keep_logits,
        "clip_grad_norm": job.clip_grad_norm,
        "compile": job.compile,
        "offload.parameters": job.parameter_offload,
        "expandable_segments": job.expandable_segments,
        "expert_imbalance": job.expert_imbalance,
    }
    if job.loss.kind == "chunked":
        training["loss.chunks"] = job.loss.chunks
    if job.checkpointing.mode != "none":
        details = {name: getattr(job.checkpointing, name) for name in _CHECKPOINTING}
        training.update((f"activation_checkpointing.{name}", value) for name, value in details.items())
    if job.lora is not None:
        stated = {name: getattr(job.lora, name) for name in Lora._fields}
        training.update((f"lora.{name}", value) for name, value in stated.items() if value)
    training.update((f"precision.{name}", value) for name, value in _deviations(job).items())
    training.update(_around(job))
    training.update(_objective(job))
    training.update((f"options.{name}", value) for name, value in job.options)
    found.update((f"training.{name}", value) for name, value in training.items())
    return found


_CHECKPOINTING = ("reentrant", "every_n_layers", "modules", "offload")


def _layout(layout: Layout, job: TrainingJob) -> dict[str, object]:
    names = ["tensor", "sequence", "context", "pipeline", "virtual_stages", "expert", "expert_tensor", "zero_stage"]
    if layout.pipeline > 1:
        names.append("pipeline_schedule")
    if layout.zero_stage:
        names.append("shard_group")
    if layout.zero_stage == 3:
        names.append("reshard_after_forward")
    if job.gradient_accumulation_steps > 1 and layout.data * layout.context > 1:
        names.append("gradient_sync")
    if layout.zero_stage == 0 and layout.data * layout.context > 1:
        names.append("gradient_as_bucket_view")
    return {"data": layout.data, **{name: getattr(layout, name) for name in names}}


def _deviations(job: TrainingJob) -> dict[str, object]:
    """Dtypes of the training state that are not what the recipe means to its framework."""
    named, framework = PrecisionSpec(recipe=job.recipe.recipe), job.framework
    usual = resolve_recipe(named, job.method, job.layout, framework, Defaults())
    names = [name for name in Recipe._fields if name not in ("recipe", "autocast", "compute")]
    return {name: getattr(job.recipe, name) for name in names if getattr(job.recipe, name) != getattr(usual, name)}


def _around(job: TrainingJob) -> dict[str, object]:
    """How the model is made and saved, as far as that is not what its framework does by itself."""
    framework = job.framework
    made = resolve_initialization(None, job.layout, job.base_format, framework, Defaults())
    saved = resolve_checkpoint(None, job.layout, framework, dict(job.options), Defaults())
    found: dict[str, object] = {}
    for name, values, usual in (("initialization", job.initialization, made), ("checkpoint", job.checkpoint, saved)):
        default = usual._asdict()
        stated = {field: value for field, value in values._asdict().items() if value != default[field]}
        found.update((f"{name}.{field}", value) for field, value in stated.items())
    return found


def _objective(job: TrainingJob) -> dict[str, object]:
    """The keys of the objective and the head where they are not the usual ones, of other resident models (a reference,
    a teacher), and of evaluation between steps.
    """
    found: dict[str, object] = {}
    plain, objective = TrainingJob._field_defaults, job.objective
    if objective.name != plain["objective"].name:
        found["objective.name"], found["reference"] = objective.name, objective.reference
        if objective.prompt_tokens:
            found["objective.prompt_length"] = objective.prompt_tokens
    if objective.loss_code:
        found.update(_trainer(objective.loss_code))
    if job.head != plain["head"]:
        found["head.kind"] = job.head.kind
        if job.head.labels:
            found["head.labels"] = job.head.labels
    if any(each.role == "teacher" for each in job.auxiliary_models):
        found["teacher"] = "a second model"
    if job.evaluation is not None:
        found["evaluation.micro_batch_size"] = job.evaluation.micro_batch_size
        found["evaluation.steps"] = job.evaluation.steps
        found["evaluation.logits"] = "kept" if job.evaluation.keeps_logits else "dropped"
        if job.evaluation.sequence_length:
            found["evaluation.sequence_length"] = job.evaluation.sequence_length
    if job.sequences != plain["sequences"]:
        found["sequences"] = job.sequences
    if job.optimizer.in_backward:
        found["optimizer.in_backward"] = True
    return found


def _trainer(code: str) -> dict[str, object]:
    """Whose lines compute the loss, and since which release they are so."""
    if code in TRAINERS:
        return {"trainer.name": code}
    name, _, version = code.partition("-")
    return {"trainer.name": name, "trainer.version": version}


def neutral(framework: Framework, layout: Layout) -> dict[str, object]:
    """What goes without saying: the values a config of this framework has when it is silent."""
    return {
        "parallelism.data": layout.data,
        "parallelism.tensor": 1,
        "parallelism.sequence": framework.parallelism.sequence_default and layout.tensor > 1,
        "parallelism.context": 1,
        "parallelism.pipeline": 1,
        "parallelism.virtual_stages": 1,
        "parallelism.expert": 1,
        "parallelism.expert_tensor": 1,
        "parallelism.zero_stage": 0,
        "parallelism.shard_group": layout.data * layout.context,
        "parallelism.reshard_after_forward": layout.pipeline == 1 or framework.fsdp2.gathers_stages_again,
        "parallelism.gradient_sync": framework.parallelism.gradient_sync_default,
        "parallelism.gradient_as_bucket_view": False,
        "training.method": "full",
        "training.freeze": (),
        "training.gradient_accumulation_steps": 1,
        "training.optimizer.offload": "none",
        "training.activation_checkpointing.mode": "none",
        "training.activation_checkpointing.reentrant": False,
        "training.activation_checkpointing.every_n_layers": 1,
        "training.activation_checkpointing.modules": (),
        "training.activation_checkpointing.offload": "none",
        "training.attention": framework.default_attention,
        "training.loss.kind": _loss(framework, layout),
        "training.loss.upcast": True,
        "training.loss.keep_logits": framework.losses.keep_logits
        or (layout.pipeline > 1 and framework.caches_last_stage_logits),
        "training.clip_grad_norm": framework.clip_grad_norm,
        "training.compile": False,
        "training.offload.parameters": "none",
        "training.expandable_segments": framework.expandable,
        "training.expert_imbalance": 1.0,
    }


def _loss(framework: Framework, layout: Layout) -> str:
    by_itself = framework.losses.vocab_parallel_when
    if framework.losses.default == "standard" and by_itself == "tensor" and layout.tensor > 1:
        return "vocab-parallel"
    return framework.losses.default
