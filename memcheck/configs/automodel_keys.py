"""NeMo AutoModel's keys, and the plan keys for the same things. Read at NVIDIA-NeMo/Automodel 36044ad3 of August 2026
(``components/distributed/config.py``, ``recipes/_dist_utils.py``, ``components/training/step_scheduler.py``,
``components/optim/optimizer.py``, ``components/_peft/lora.py``, ``components/models/common/utils.py``).
"""

from __future__ import annotations

from memcheck.configs.key_table import key_table
from memcheck.configs.model_overrides import SIZELESS

KEYS = key_table("automodel")


BENCHMARK = "BenchmarkingRecipeForNextTokenPrediction"
PICTURES = "FinetuneRecipeForVLM"
SEEN_DATA = "components.datasets.vlm."
DRAWN = "mock.build_mock_vlm_dataset"
CLASSES = "TrainFinetuneRecipeForSequenceClassification"

NO_OVERRIDES = (
    SIZELESS
    | {"_target_", "pretrained_model_name_or_path", "name_or_path", "torch_dtype", "dtype"}
    | {"kda_mode", "kda_unpad_inputs", "kda_use_fused_gate", "kda_use_qk_l2norm_in_kernel"}
)
"""Keys of ``model.config`` that set no size. Those of Kimi Delta Attention fuse its gate and norms, which keeps less
than its separate products do, as which they are priced (``components/models/kimi_linear/config.py``).
"""
PAST_ADAPTERS, PAST = ("falcon_h1", "nemotron_h"), "out_proj"
"""Models whose Mamba layers hand this module's weight to one kernel while they train (``outproj_weight`` in
transformers' modeling_falcon_h1.py and AutoModel's ``nemotron_v3/layers.py``). PEFT stops at it, AutoModel does not.
"""
