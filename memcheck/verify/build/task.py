"""Models that end in labels or pooled rows instead of a vocabulary: their classes, labels and losses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

from memcheck.job.types import TrainingJob
from memcheck.verify.build.dtypes import DTYPES
from memcheck.verify.watch import Watch, enter_loss

AUTO = {
    "classification": "AutoModelForSequenceClassification",
    "reward": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "embedding": "AutoModel",
}
"""transformers' own choice of a class by the kind of head."""
SCALE = 20.0
"""Factor of similarities (sentence-transformers, losses/multiple_negatives_ranking.py)."""


def class_with_head(job: TrainingJob, config: Any) -> Callable[..., nn.Module]:
    """What builds the model with its head, and tells the configuration how many labels there are."""
    import transformers

    if job.head.labels:
        config.num_labels = job.head.labels
        # what each class finds out by itself, DeBERTa's by reading values of labels
        config.problem_type = "regression" if job.head.labels == 1 else "single_label_classification"
        text = config.get_text_config()
        text.pad_token_id = getattr(text, "pad_token_id", None) or 0  # which rows of a batch are read by
    build: Callable[..., nn.Module] = getattr(transformers, AUTO[job.head.kind]).from_config
    return build


def labels_of(job: TrainingJob, rows: int, tokens: int) -> torch.Tensor:
    """What a micro-batch is compared with: a class of every sequence or token, a number where there is one label."""
    kind, labels = job.head.kind, job.head.labels
    if kind == "embedding":
        return torch.zeros(rows, dtype=torch.int64)
    if kind == "token-classification":
        return torch.randint(0, labels, (rows, tokens))
    if labels == 1:
        return torch.rand(rows, dtype=DTYPES[job.recipe.params])
    return torch.randint(0, labels, (rows,))


def mark_loss(job: TrainingJob, model: nn.Module, watch: Watch) -> None:
    """The loss starts at the matrix to the labels; that of embeddings says so itself."""
    if not job.head.labels:
        return
    matrices = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == job.head.labels]
    matrices[-1].register_forward_pre_hook(lambda *_: enter_loss(watch))


def compared_columns(
    model: nn.Module, watch: Watch, cast: Callable[[torch.Tensor], AbstractContextManager[Any]]
) -> Callable[[torch.Tensor, torch.Tensor, list[Any]], torch.Tensor]:
    """Columns of texts, each embedded by a pass of its own as the mean of its rows, and compared within the batch.

    sentence-transformers 6.2, modules/pooling.py (mean) and losses/multiple_negatives_ranking.py. Each module writes
    into the features that it was given, so that the last hidden states of every column live until the loss is there.
    ``cast``: autocast around each pass, where accelerate puts it.
    """

    def pooled(ids: torch.Tensor, features: dict[str, torch.Tensor]) -> torch.Tensor:
        with cast(ids):
            features["token_embeddings"] = states = model(input_ids=ids).last_hidden_state
            mask = torch.ones_like(ids).unsqueeze(-1).to(states.dtype)
            total = (states * mask).sum(dim=1, dtype=torch.float32)
            rows: torch.Tensor = (total / torch.clamp(mask.sum(dim=1, dtype=torch.float32), min=1e-9)).to(states.dtype)
        return rows

    def loss_of(ids: torch.Tensor, labels: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        columns: list[dict[str, torch.Tensor]] = [{} for _ in ids]  # the trainer's, to the end of its loss
        first, second = (pooled(*each) for each in zip(ids.unbind(0), columns, strict=True))
        enter_loss(watch)
        scores = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T * SCALE
        return F.cross_entropy(scores, torch.arange(scores.shape[0]))

    return loss_of
