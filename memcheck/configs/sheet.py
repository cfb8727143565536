"""A framework's config in the making: what of a plan has been written, and what could not be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memcheck.configs.types import KeyRow, Notice

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


class Sheet:
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
