"""Parameters that ``from_pretrained`` loads in fp32 whatever dtype the model is asked for.

Source: transformers 5.23 modeling_utils.py (``_get_dtype_plan``): ``_keep_in_fp32_modules_strict`` of the class, and in
fp16 ``_keep_in_fp32_modules``, too. core_model_loading.py looks for either in the names of parameters and of buffers.
"""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.job.types import TrainingJob
from memcheck.models.types import Rough
from memcheck.remembered import lru_cache

ENDS = "fp32_embeddings"
"""The option for what Axolotl does without adapters and FSDP, where no flash attention follows (``loaders/model.py``,
``_convert_embedding_modules_dtype``): whatever has ``norm`` in its name, routers, embedding and head.
"""
UPCAST = ("norm", ".gate.", "embed_tokens", "lm_head")


def kept_names(job: TrainingJob) -> tuple[str, ...]:
    """Parts of the names of those parameters. An engine of its own casts the whole model when it takes it over
    (DeepSpeed runtime/engine.py, ``_configure_distributed_model``).
    """
    profile, a = job.framework, job.architecture
    if not profile.runs_transformers or profile.own_engine or isinstance(a, Rough):
        return ()
    upcast = UPCAST if upcasts_ends(job) else ()
    return {"bf16": a.kept_wide + upcast, "fp16": a.kept_wide + a.kept_fp16 + upcast}.get(job.recipe.params, ())


def upcasts_ends(job: TrainingJob) -> bool:
    """Whether the trainer makes norms, embeddings and head fp32 when the model is loaded (``ENDS``)."""
    return bool(job.option(ENDS, default=False)) and job.recipe.params != "fp32"


def unquantised(job: TrainingJob) -> tuple[str, ...]:
    """Parts of the names of linear layers that are not quantised: those of ``_keep_in_fp32_modules``, in any dtype
    (quantizers/base.py, ``get_modules_to_not_convert``). Files of GPTQ say themselves what they hold.
    """
    a, by_class = job.architecture, job.framework.runs_transformers and not job.held_in.startswith("gptq")
    return a.kept_fp16 if by_class and not isinstance(a, Rough) else ()


def as_stored(job: TrainingJob, tensors: tuple[LocalTensor, ...]) -> tuple[LocalTensor, ...]:
    """The tensors, with fp32 for those that are stored in fp32 in a model of another dtype."""
    return widened(tensors, kept_names(job), trained=job.upcast)


@lru_cache(maxsize=4096)
def widened(tensors: tuple[LocalTensor, ...], names: tuple[str, ...], *, trained: bool) -> tuple[LocalTensor, ...]:
    """The tensors, those of these names in fp32, or what is ``trained``. Adapters have a dtype of their own."""
    if not (names or trained):
        return tensors
    found = tuple(
        t._replace(dtype="fp32")
        if (trained and t.trained) or (t.dtype is None and any(name in t.name for name in names))
        else t
        for t in tensors
    )
    return tensors if found == tensors else found
