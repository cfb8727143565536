"""Launchers of whole jobs: what a user starts, with the arguments of a record, on a model that lies on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

Followed = Callable[[], AbstractContextManager[None]]
SFT, PREFERENCE, UNPAIRED, REWARD = "sft", "dpo", "kto", "reward"
BEGIN = ("ORPO", "CPO")
"""Trainers that put a token of the beginning in front of a prompt."""


def saved_model(record: dict[str, Any], folder: str) -> str:
    """Write a model with random weights, and a tokenizer whose tokens are words; return where."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    dims = dict(record["model"])
    shapes = AutoConfig.for_model(dims.pop("model_type"), **dims)
    path = os.path.join(folder, "model")
    AutoModelForCausalLM.from_config(shapes).to(torch.bfloat16).save_pretrained(path)
    special = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    ids = {word: n for n, word in enumerate(special.values())} | {f"w{n}": n for n in range(4, 64)}
    made = Tokenizer(models.WordLevel(ids, special["unk"]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    kept = PreTrainedTokenizerFast(tokenizer_object=made, **{f"{name}_token": word for name, word in special.items()})
    kept.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    kept.save_pretrained(path)
    return path


def words(count: int) -> str:
    """Text of so many tokens."""
    return " ".join(f"w{4 + n % 60}" for n in range(count))


def rows(record: dict[str, Any], count: int) -> Any:
    """A data set whose rows have exactly the plan's tokens."""
    from datasets import Dataset

    training = record["plan"]["training"]
    length = training["sequence_length"]
    kind = record["rows"]
    if kind == SFT:
        return Dataset.from_list([{"input_ids": [4 + n % 60 for n in range(length)]}] * count)
    prompt = record.get("prompt", length // 4)
    begun = record["trainer"].endswith(BEGIN)
    asked = words(prompt - begun) + " "  # a trainer that joins both would make one word of two
    said = words(length - prompt - 1)  # the trainer adds the end
    if kind == UNPAIRED:
        rows = [{"prompt": asked, "completion": said, "label": n % 2 == 0} for n in range(count)]
        return Dataset.from_list(rows)
    return Dataset.from_list([{"prompt": asked, "chosen": said, "rejected": said}] * count)


def arguments(record: dict[str, Any], folder: str) -> dict[str, Any]:
    """What every transformers trainer is told, and what the record adds."""
    training = record["plan"]["training"]
    return {
        "output_dir": os.path.join(folder, "out"),
        "report_to": [],
        "per_device_train_batch_size": training["micro_batch_size"],
        "per_device_eval_batch_size": training.get("evaluation", {}).get("micro_batch_size", 1),
        "gradient_accumulation_steps": training.get("gradient_accumulation_steps", 1),
        "max_steps": 2,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **record["arguments"],
    }


def _sized(record: dict[str, Any]) -> tuple[Any, Any]:
    plan = record["plan"]
    training = plan["training"]
    ranks = plan["hardware"].get("gpus_per_node", 1)
    steps = training["micro_batch_size"] * training.get("gradient_accumulation_steps", 1) * 2
    return rows(record, steps * ranks), rows(record, training["evaluation"]["micro_batch_size"] * 2 * ranks)


def _labelled(found: Any) -> Any:
    labelled = found.add_column("labels", found["input_ids"])
    return labelled.add_column("attention_mask", [[1] * len(ids) for ids in found["input_ids"]])


def _adapters(record: dict[str, Any]) -> Any:
    from peft import LoraConfig

    return LoraConfig(**record["adapters"]) if "adapters" in record else None


def _finish(trainer: Any) -> None:
    trainer.train()
    trainer.evaluate()
    trainer.save_model()


def trl(record: dict[str, Any], folder: str, followed: Followed) -> None:
    """TRL: the trainer is given a path, as its scripts do."""
    from importlib import import_module

    from transformers import AutoTokenizer

    path = saved_model(record, folder)
    where, _, name = record["trainer"].rpartition(".")
    library = import_module(where)
    train, judged = _sized(record)
    with followed():
        made = getattr(library, f"{name}Trainer")(
            model=path,
            args=getattr(library, f"{name}Config")(**arguments(record, folder)),
            train_dataset=train,
            eval_dataset=judged,
            processing_class=AutoTokenizer.from_pretrained(path),
            peft_config=_adapters(record),
        )
        _finish(made)


def transformers(record: dict[str, Any], folder: str, followed: Followed) -> None:
    """transformers' Trainer, around a model that a script has loaded: before its arguments where a record says so."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    path = saved_model(record, folder)
    train, judged = _sized(record)
    with followed():
        loads_first = record.get("loads_first", False)
        config = None if loads_first else TrainingArguments(**arguments(record, folder))
        model = AutoModelForCausalLM.from_pretrained(path, **record.get("loading", {}))
        config = config or TrainingArguments(**arguments(record, folder))
        adapters = _adapters(record)
        if adapters is not None:
            model = get_peft_model(model, adapters)
        made = Trainer(model=model, args=config, train_dataset=train, eval_dataset=judged, data_collator=_collated)
        _finish(made)


def _collated(found: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([each["input_ids"] for each in found])
    return {"input_ids": ids, "labels": ids.clone()}


def axolotl(record: dict[str, Any], folder: str, followed: Followed) -> None:
    """Axolotl: its validated config, its loader and its builder of a trainer ."""
    from axolotl.cli.config import normalize_config
    from axolotl.loaders import ModelLoader, load_tokenizer
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault
    from axolotl.utils.trainer import setup_trainer

    path = saved_model(record, folder)
    training = record["plan"]["training"]
    said = {
        "base_model": path,
        "micro_batch_size": training["micro_batch_size"],
        "eval_batch_size": training["evaluation"]["micro_batch_size"],
        "gradient_accumulation_steps": training.get("gradient_accumulation_steps", 1),
        "sequence_len": training["sequence_length"],
        "max_steps": 2,
        "num_epochs": 1,
        "learning_rate": 1e-4,
        "val_set_size": 1,
        "save_strategy": "no",
        "output_dir": os.path.join(folder, "out"),
        "datasets": [{"path": "none", "type": "alpaca"}],
        **record["config"],
    }
    able = {"bf16": True, "fp8": False, "tf32": False, "n_gpu": 1, "compute_capability": "sm_80"}
    train, judged = (_labelled(each) for each in _sized(record))
    with followed():
        config = validate_config(DictDefault(said), capabilities=able, env_capabilities={"torch_version": "2.13.0"})
        normalize_config(config)
        config.device, config.device_map = "cpu:0", {"": "cpu:0"}
        tokenizer = load_tokenizer(config)
        model, adapters = ModelLoader(config, tokenizer).load()
        made = setup_trainer(
            cfg=config,
            train_dataset=train,
            eval_dataset=judged,
            model=model,
            tokenizer=tokenizer,
            processor=None,
            total_num_steps=2,
            peft_config=adapters,
        )
        _finish(made)


def llamafactory(record: dict[str, Any], folder: str, followed: Followed) -> None:
    """LLaMA-Factory: its command's own entry, which is given a config and rows that it has tokenized before."""
    from datasets import DatasetDict
    from llamafactory.extras import misc
    from llamafactory.hparams import parser
    from llamafactory.model import loader
    from llamafactory.model.model_utils import quantization
    from llamafactory.train import trainer_utils, tuner

    for module in (misc, parser, loader, quantization, trainer_utils):  # the CPU that stands for a GPU
        if hasattr(module, "get_current_device"):
            module.get_current_device = lambda: torch.device("cpu:0")
    path = saved_model(record, folder)
    train, judged = (_labelled(each) for each in _sized(record))
    kept = os.path.join(folder, "rows")
    DatasetDict(train=train, validation=judged).save_to_disk(kept)
    said = {
        **arguments(record, folder),
        "model_name_or_path": path,
        "tokenized_path": kept,
        "dataset": "none",
        "eval_dataset": "none",
        "template": "empty",
        "cutoff_len": record["plan"]["training"]["sequence_length"],
        "do_train": True,
        "do_eval": True,
        "report_to": "none",
    }
    with followed():
        tuner.run_exp(said, [])


LAUNCHERS: dict[str, Callable[[dict[str, Any], str, Followed], None]] = {
    "axolotl": axolotl,
    "llamafactory": llamafactory,
    "transformers": transformers,
    "trl": trl,
}
