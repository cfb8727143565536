"""The loops of torchtune's recipes over preferences and from a teacher, line by line: which variable holds what.

Source: torchtune bd2a0fc7c ``recipes/lora_dpo_single_device.py``, ``recipes/full_dpo_distributed.py``,
``recipes/knowledge_distillation_single_device.py``, whose files are no part of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def preference_step(model: Any, reference: Any, tracer: Any, optimizer: Any, batch: tuple[Any, Any]) -> Any:
    """A step over pairs. ``reference``: the model of full training's recipe; None turns the adapters off.

    The recipes of adapters forget to delete the logits of the reference, which live until the next ones' outputs.
    """
    import torch
    from torchtune.modules.peft import disable_adapter

    forward = _by_halves if reference is not None else _at_once
    held = dict[str, Any]()

    def step() -> None:
        tracer.phase = "forward"
        policy = forward(model, batch)
        means = [policy.chosen_logits.detach().mean(), policy.rejected_logits.detach().mean()]
        del policy.chosen_logits, policy.rejected_logits
        held.clear()
        tracer.phase = "loss"
        with torch.no_grad():
            if reference is not None:
                theirs = forward(reference, batch)
                del theirs.chosen_logits, theirs.rejected_logits
            else:
                with disable_adapter(model):
                    theirs = forward(model, batch)
        held["reference_chosen_rejected_outputs"] = theirs
        tracer.phase = "loss"
        ratios = policy.chosen_logps - policy.rejected_logps - (theirs.chosen_logps - theirs.rejected_logps)
        loss = -torch.nn.functional.logsigmoid(0.1 * ratios).mean()  # DPOLoss, which 0.7.0 cannot import
        del ratios
        del policy, theirs, means
        tracer.phase = "backward"
        loss.backward()
        del loss
        tracer.phase = "optimizer"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _at_once(model: Any, batch: tuple[Any, Any]) -> Any:
    """``concatenated_forward`` of the recipes of adapters."""
    from torchtune.rlhf import get_batch_log_probs
    from torchtune.rlhf._types import ChosenRejectedOutputs

    ids, labels = batch
    half = ids.shape[0] // 2
    all_logits = model(ids)
    scores = get_batch_log_probs(all_logits, labels)
    return ChosenRejectedOutputs(scores[:half], scores[half:], all_logits[:half], all_logits[half:])


def _by_halves(model: Any, batch: tuple[Any, Any]) -> Any:
    """``concatenated_forward`` of full training's recipe."""
    from torchtune.rlhf import get_batch_log_probs
    from torchtune.rlhf._types import ChosenRejectedOutputs

    ids, labels = batch
    half = ids.shape[0] // 2
    all_logits = model(ids)
    chosen = get_batch_log_probs(all_logits[:half], labels[:half], return_average_logprobs=False)
    rejected = get_batch_log_probs(all_logits[half:], labels[half:], return_average_logprobs=False)
    return ChosenRejectedOutputs(chosen, rejected, all_logits[:half], all_logits[half:])


def distillation_step(
    model: Any, teacher: Any, tracer: Any, optimizer: Any, losses: tuple[Any, Any], batch: tuple[Any, Any]
) -> Callable[[], None]:
    """A step from a teacher, whose logits are chunks as the student's are. ``losses``: class loss and divergence."""
    import torch

    loss_of, divergence_of = losses
    ids, labels = batch
    torch.Tensor.__bool__ = lambda self: False  # `if sum_masks == 0`, which fake tensors do not know

    def step() -> None:
        tracer.phase = "forward"
        logits = model(ids)
        with torch.no_grad():
            teacher_logits = teacher(ids)
        tracer.phase = "loss"
        kd_loss = divergence_of(logits, teacher_logits, labels)
        loss = loss_of(logits, labels)
        del logits, teacher_logits
        current_loss = 0.5 * loss + 0.5 * kd_loss
        del loss, kd_loss
        tracer.phase = "backward"
        current_loss.backward()
        del current_loss
        tracer.phase = "optimizer"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
