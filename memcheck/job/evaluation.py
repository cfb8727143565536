"""From ``training.evaluation`` to the pass between steps."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.job.objective_types import Evaluation
from memcheck.plan import types as plan_types

DEFAULT_BATCH = 8
"""``per_device_eval_batch_size`` (transformers 5.23 ``training_args.py``), whatever the training batch is."""


def resolve_evaluation(stated: plan_types.EvaluationSpec, defaults: Defaults) -> Evaluation:
    """The pass that the plan states.

    Raises:
        ResolutionError: logits are kept for an unknown number of steps, which they are proportional to.
    """
    key = "training.evaluation."
    why = "default of transformers without compute_metrics: prediction_loss_only"
    logits = defaults.take(key + "logits", stated.logits, "dropped", why)
    if logits == "kept" and stated.steps is None:
        message = "training.evaluation.steps is missing: kept logits pile up over all steps of a pass"
        help = "write how many batches a pass has, or `logits: dropped`"
        raise ResolutionError((JobProblem("missing", "/training/evaluation", message, help=help),))
    size = defaults.take(key + "micro_batch_size", stated.micro_batch_size, DEFAULT_BATCH, "default of transformers")
    if stated.sequence_length is None:
        defaults.note(key + "sequence_length", "that of the training", "default")
    return Evaluation(size, stated.sequence_length or 0, stated.steps or 1, keeps_logits=logits == "kept")
