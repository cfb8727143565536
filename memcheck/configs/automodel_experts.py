"""Adapters on the routed experts of an AutoModel recipe.

Sources: NVIDIA-NeMo/Automodel 36044ad3 ``components/_peft/lora.py`` (apply_lora_to_linear_modules, patch_moe_module),
``components/moe/layers.py`` (MoE: which class holds the experts), ``components/models/common/utils.py``
(BackendConfig). All experts of a layer are one module of AutoModel's own classes; transformers' are none that it knows.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import on, text
from memcheck.models.types import Architecture, Moe

Fits = Callable[[str], bool]
"""Whether the module of a name is adapted."""
PARAMETERS, RANK = "training.lora.target_parameters", "training.lora.expert_rank"
BACKEND = ("model.backend.dispatcher", "model.backend.experts")
SENDING = ("deepep", "hybridep", "uccl_ep")
SCALED = "peft.moe_rank_scaling"


def adapted_experts(draft: Draft, found: Architecture, fits: Fits, path: str) -> str:
    """State the adapters of experts, if a pattern names them; what has no memory model of them, else nothing."""
    matched, names, choices = set[bool](), dict[str, None](), set[int]()
    for index, block in enumerate(found.layers()):
        m = block.mlp
        if not isinstance(m, Moe):
            continue
        stacked = [t for t in m.tensors if t.group == "experts" and not t.name.endswith("_bias")]
        modules = {stacked[0].name.rpartition(".")[0], "mlp.experts"}  # whatever transformers calls their parent
        matched |= {fits(f"model.layers.{index}.{module}") for module in modules}
        names.update(dict.fromkeys(t.name for t in stacked if len(t.shape) == 3))
        choices.add(m.experts_per_token)
    if True not in matched:
        return ""
    if False in matched or len(choices) > 1 or not names:
        return "some routed experts"
    degree = draft.value("parallelism.expert")
    if not isinstance(degree, int) or degree == 1:
        return "routed experts that every rank has (ep_size: 1)"
    if why := _unable(draft):
        return why
    draft.set(PARAMETERS, list(names), path)
    _rank(draft, choices.pop())
    return ""


def _unable(draft: Draft) -> str:
    """Classes of experts that are not adapted by grouped products; empty for the others."""
    dispatcher, experts = (text(draft, name) for name in BACKEND)
    sends = dispatcher in SENDING or not dispatcher
    if experts == "te" and sends:
        return "routed experts of Transformer Engine, which AutoModel does not adapt either,"
    if experts == "torch":
        return "routed experts that a loop goes through (model.backend.experts: torch)"
    if experts == "gmm" and sends:
        what = "grouped_gemm takes the adapters' ranks unpadded: priced as torch's, which fill 16 bytes, an upper bound"
        draft.note(BACKEND[1], what)
    return ""


def _rank(draft: Draft, choices: int) -> None:
    """``moe_rank_scaling``: the rank is divided by the experts of a token."""
    whole = draft.value("training.lora.rank")
    if not on(draft, SCALED) or not isinstance(whole, int):
        return
    if whole < choices:
        message = f"`{SCALED}`: a rank of {whole} for {choices} experts of a token is below 1, at which AutoModel stops"
        draft.refuse(SCALED, message, "raise `peft.dim`", (RANK,))
    else:
        draft.set(RANK, whole // choices, SCALED)
