"""Steps of ``framework: huggingface`` in the Trainer's own objects: needs the extra ``verify`` and accelerate.

``memcheck verify`` wraps a model by the plan's recipe, which is how the prediction understands it. Here the same model
is given to transformers' ``Trainer``: its ``TrainingArguments`` make accelerate's plugin, ``_prepare_for_training``
wraps model and optimizer, ``training_step`` computes loss and gradients, and its clipping and accelerate's ``no_sync``
are called in the order of its loop. Tensors are fake, collectives do nothing, and a CPU stands for the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from memcheck.frameworks.torch.data_parallel import uses_flat_parameters
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build import step as single
from memcheck.verify.build.model import build_model, head_of, mark_loss
from memcheck.verify.build.step import HERE, DevicePlacement, StepParts, micro_batches, token_batches
from memcheck.verify.build.trained import adapt, freeze, make_optimizers
from memcheck.verify.build.wrap import Mesh, recompute
from memcheck.verify.compare import Watch, enter_loss
from memcheck.verify.trace.tracer import patched
from memcheck.verify.trace.world import _real
from memcheck.verify.trace.wrappers import flat_parameters

KWARGS = "DistributedDataParallelKwargs"
ENVIRONMENT = {
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "ACCELERATE_BYPASS_DEVICE_MAP": "true",  # DDP without device ids, as a CPU has none
}


@contextmanager
def trainer_steps(plan: dict[str, Any]) -> Iterator[None]:
    """Steps of a plan that are traced inside are the Trainer's."""
    from accelerate import state
    from torch.distributed.fsdp._fully_shard import _fully_shard
    from transformers import training_args

    def backend(*_: object, **__: object) -> tuple[str | None, Any]:
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return ("fake", state.DistributedType.MULTI_GPU) if ranks > 1 else (None, state.DistributedType.NO)

    with ExitStack() as stack:
        stack.callback(_restore, dict(os.environ))  # accelerate writes what it was told, too
        os.environ |= ENVIRONMENT
        stack.enter_context(patched(state.PartialState, "_prepare_backend", backend))
        stack.enter_context(patched(training_args, "is_torch_bf16_gpu_available", lambda: True))
        # the mesh of all ranks is made of their numbers, which fake tensors have not
        stack.enter_context(patched(_fully_shard, "_init_default_mesh", _real(_fully_shard._init_default_mesh)))  # noqa: SLF001
        stack.enter_context(flat_parameters())  # accelerate finds parameters again by their addresses
        stack.enter_context(patched(single, "build_single", partial(build_trainer, _as_stated(plan["training"]))))
        yield


def _restore(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _as_stated(training: dict[str, Any]) -> Callable[[TrainingJob], TrainingJob]:
    """The job with the dtypes in which the plan says that weights and adapters are loaded, which accelerate changes."""
    precision, lora = training.get("precision"), training.get("lora", {})

    def loaded(job: TrainingJob) -> TrainingJob:
        if isinstance(precision, dict) and "params" in precision:
            job = job._replace(recipe=job.recipe._replace(params=precision["params"]))
        if job.lora is not None and "dtype" in lora:
            job = job._replace(lora=job.lora._replace(dtype=lora["dtype"]))
        return job

    return loaded


def arguments_of(job: TrainingJob) -> dict[str, Any]:
    """What a user writes in ``TrainingArguments`` for the plan."""
    layout, named = job.layout, job.recipe.recipe
    found: dict[str, Any] = {
        "output_dir": os.devnull + ".d",
        "report_to": [],
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "bf16": named.startswith("bf16-mixed"),
        "fp16": named.startswith("fp16-mixed"),
        "optim": "adafactor" if job.optimizer.name == "adafactor" else "adamw_torch_fused",
        "max_grad_norm": 1.0 if job.clip_grad_norm else 0.0,
        "save_strategy": "no",
        "ddp_find_unused_parameters": False,  # else the reducer reads values: which parameters were used, an int32 each
    }
    if layout.zero_stage == 3 and layout.data > 1:
        config: dict[str, Any] = {"version": job.fsdp_version}
        if uses_flat_parameters(job):
            # what the plugin is told of resharding goes under in its own default, which this variable sets
            os.environ["FSDP_SHARDING_STRATEGY"] = "FULL_SHARD" if layout.reshard_after_forward else "SHARD_GRAD_OP"
            config["backward_prefetch"] = "backward_pre"
            config["sync_module_states"] = False
        else:
            config["reshard_after_forward"] = layout.reshard_after_forward
        if job.parameter_offload == "cpu":
            config["cpu_offload"] = True
        found |= {"fsdp": True, "fsdp_config": config}
    return found


def build_trainer(
    as_stated: Callable[[TrainingJob], TrainingJob],
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    mesh: Mesh,
    watch: Watch,
    place: DevicePlacement = HERE,
) -> StepParts:
    """Everything that one step of the Trainer needs."""
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments
    from transformers import trainer as module

    job = as_stated(job)
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001
    with torch.device(place.model):
        model = build_model(job, architecture, config)
    freeze(model, architecture, job.freeze)
    base = model
    if job.lora is not None:
        model = adapt(model, job, job.lora)
    recompute(model, job)
    arguments = TrainingArguments(**arguments_of(job))

    class Stepping(Trainer):
        def create_optimizer(self, model: nn.Module | None = None) -> Any:
            place.ready(model if model is not None else self.model)
            if job.optimizer.name == "adafactor":  # transformers' own
                return super().create_optimizer(model)
            (self.optimizer,) = make_optimizers(model if model is not None else self.model, job)
            return self.optimizer

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> None:
            self.lr_scheduler = None

    with ExitStack() as stack:
        stack.enter_context(patched(nn.Module, "to", lambda self, *_, **__: self))  # it is there already
        options = {"gradient_as_bucket_view": job.layout.gradient_as_bucket_view}
        stack.enter_context(patched(module, KWARGS, partial(getattr(module, KWARGS), **options)))
        trainer = Stepping(model=model, args=arguments)
        trainer.accelerator.native_amp = arguments.bf16 or arguments.fp16  # a CPU has no fp16, and casts all the same
        wrapped, _ = trainer._prepare_for_training(1, None, None)  # noqa: SLF001
        trainer.accelerator.native_amp = arguments.bf16  # or a scaler of fp16 is asked for, whose tensors are scalars
    place.ready(wrapped)
    accelerator = trainer.accelerator
    run_backward = accelerator.backward

    def backward(loss: torch.Tensor, **kwargs: Any) -> None:
        watch.enter("backward")
        run_backward(loss, **kwargs)

    accelerator.backward = backward
    if job.head.kind != "lm":
        mark_loss(job, base, watch)
    else:
        head_of(base).register_forward_pre_hook(lambda *_: enter_loss(watch))
    batches = token_batches(job, architecture, 1) * micro_batches(job)
    items = torch.tensor(sum(labels.numel() for _, labels in batches))

    def step() -> None:
        for i, (ids, labels) in enumerate(batches):
            last = i == len(batches) - 1
            accelerator.gradient_state._set_sync_gradients(last)  # noqa: SLF001
            watch.enter("forward")
            inputs = {"input_ids": ids, "labels": labels, "use_cache": False}
            with ExitStack() as stack:
                if not last and job.layout.gradient_sync == "last":
                    stack.enter_context(accelerator.no_sync(wrapped))
                trainer.training_step(wrapped, inputs, items)
        watch.enter("optimizer")
        if job.clip_grad_norm:
            trainer._clip_grad_norm(wrapped)  # noqa: SLF001
        trainer.optimizer.step()
        wrapped.zero_grad()

    return StepParts(
        model=wrapped,
        inner=base if job.lora is None else model,
        optimizers=[trainer.optimizer],
        inputs=list(batches),
        received=list,
        step=step,
    )
