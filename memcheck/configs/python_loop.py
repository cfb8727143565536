"""A loop of the user's own as the trainer that it stands for: one model, its optimizer, its data, a backward pass.

Read at Accelerate 1.14 (``accelerator.py``: ``prepare``, ``accumulate``), Lightning 2.5 (``trainer/trainer.py``) and
torch 2.9 (``utils/data/dataloader.py``, ``optim``, ``amp/autocast_mode.py``). A loop counts only where it trains one
model of transformers by the loss that the model itself returns: what other losses keep is in no line that is read.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from memcheck.configs.key_table import key_table
from memcheck.configs.python_code import PythonCode, walked
from memcheck.configs.python_expressions import FollowedCode
from memcheck.configs.python_library import LoadedModel
from memcheck.configs.python_values import UNKNOWN, MadeObject, PythonValue, plain

LOOP = "loss.backward"
"""What the trainer of such a file is called."""
PREPARED = "?prepared"
"""Whether an Accelerator gets the model, which it splits as its launcher says."""
SPLITS = frozenset({"FullyShardedDataParallel", "FSDP", "fully_shard", "initialize", "DataParallel"})
"""Calls that shard the model, each with arguments of its own."""
PLUGINS = ("fsdp_plugin", "deepspeed_plugin", "strategy")
"""Arguments of Accelerator and of Lightning's Trainer that may do so, too."""
COPIES = ("auto", "ddp", "ddp_spawn", "ddp_notebook", None)
"""Lightning's strategies that hold the whole model on each GPU."""


def loops_of(code: PythonCode, run: FollowedCode) -> list[MadeObject]:
    """The training loop of a file that makes no trainer; empty where there is none that is read."""
    steps = [each for each in run.things if each.name == "backward"]
    models = [each for each in run.things if isinstance(each, LoadedModel) and not each.name.endswith(".from_config")]
    optimizers = [each for each in run.things if _optimizer(each)]
    loaders = [each for each in run.things if each.name == "DataLoader"]
    if not (steps and len(models) == len(optimizers) == 1 and loaders and _own_loss(code)):
        return []
    at = steps[0].at
    model = PythonValue(models[0], models[0].at)
    keywords = _arguments(run, optimizers[0], loaders)
    arguments = MadeObject("TrainingArguments", [], keywords, at)
    made = any(each.name == "Accelerator" for each in run.things)
    keywords = {"args": PythonValue(arguments, at), PREPARED: PythonValue(made and _prepares(code), at)}
    return [MadeObject(LOOP, [model], keywords, at)]


def _optimizer(thing: MadeObject) -> bool:
    return thing.path.startswith(("torch.optim.", "bitsandbytes.optim.", "transformers.")) and thing.name in _optims()


def _optims() -> Mapping[str, str]:
    return key_table("python").words["optimizers"]


def _own_loss(code: PythonCode) -> bool:
    """Whether the loss is one that a model returns: ``outputs.loss``."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "loss" and isinstance(node.ctx, ast.Load)
        for cell in code.cells
        if cell.tree is not None
        for node in walked(cell.tree)
    )


def _prepares(code: PythonCode) -> bool:
    """Whether a call hands a model to ``prepare`` or ``prepare_model``, by the variable's name."""
    calls = (node for cell in code.cells if cell.tree is not None for node in walked(cell.tree))
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("prepare", "prepare_model")
        and any(isinstance(each, ast.Name) and "model" in each.id.lower() for each in node.args)
        for node in calls
    )


def _arguments(run: FollowedCode, optimizer: MadeObject, loaders: list[MadeObject]) -> dict[str, PythonValue]:
    """The loop's values under the names of TrainingArguments."""
    at = optimizer.at
    optim = _optims()[optimizer.name]
    if plain(optimizer.get("fused")) is True and optim == "adamw_torch":
        optim = "adamw_torch_fused"
    shuffled = [each for each in loaders if plain(each.get("shuffle")) is True]
    train = (shuffled or loaders)[0]
    others = [each for each in loaders if each is not train]
    found = {
        "optim": PythonValue(optim, at),
        "per_device_train_batch_size": train.argument(1, "batch_size") or PythonValue(1, train.at),
        "max_grad_norm": PythonValue(1.0 if any(each.name == "clip" for each in run.things) else 0.0, at),
        "eval_strategy": PythonValue("steps" if others else "no", at),
        "save_strategy": PythonValue("no", at),
    }
    if others:
        found["per_device_eval_batch_size"] = others[0].argument(1, "batch_size") or PythonValue(1, others[0].at)
    found["gradient_accumulation_steps"] = PythonValue(UNKNOWN, at, why="the loop's own count of backward passes")
    for each in run.things:
        if each.name == "Accelerator" or each.get("?fits") is not None:
            steps = each.get("gradient_accumulation_steps") or each.get("accumulate_grad_batches")
            found["gradient_accumulation_steps"] = steps or found["gradient_accumulation_steps"]
            _precision(found, each.get("mixed_precision") or each.get("precision"))
            found["max_grad_norm"] = each.get("gradient_clip_val") or found["max_grad_norm"]
            split = next((each.get(name) for name in PLUGINS if each.get(name) is not None), None)
            if split is not None and (not split.known or plain(split) not in COPIES):
                found["fsdp"] = split._replace(of=UNKNOWN, why="what shards the model, whose units are not read")
        elif each.name == "autocast":
            _precision(found, each.argument(1, "dtype") or PythonValue("float16", each.at))
        elif each.name in SPLITS:
            found["fsdp"] = PythonValue(UNKNOWN, each.at, why=f"`{each.name}`, whose units are not read")
    return found


def _precision(found: dict[str, PythonValue], said: PythonValue | None) -> None:
    """The dtype of the forward pass, of a call that casts it: ``bf16``, ``bf16-mixed``, ``torch.bfloat16``."""
    word = "" if said is None or not said.known else str(plain(said))
    if said is not None and (not said.known or word.endswith("-true")):
        found["bf16"] = said._replace(of=UNKNOWN)
    elif said is not None and word.startswith(("bf16", "bfloat16", "fp16", "float16", "16")):
        found["bf16" if word.startswith("b") else "fp16"] = said._replace(of=True)
