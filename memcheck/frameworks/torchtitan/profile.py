"""torchtitan.

Sources: ``torchtitan/config/job_config.py`` (optimizer ``implementation`` fused, ``max_norm`` 1.0, ``dtype`` float32,
``mixed_precision_param`` bfloat16, ``mixed_precision_reduce`` float32 only, ``disable_loss_parallel`` false, sequence
parallelism with tensor parallelism), ``torchtitan/distributed/utils.py`` (autocast only without FSDP, TP and PP),
``run_train.sh`` (``PYTORCH_ALLOC_CONF=expandable_segments:True``), read up to commit b5bcd76c6 of August 2026.
"""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.job import recipe as r
from memcheck.job.framework import Framework, Fsdp2, LoadAndSave, Losses, Optimizers, Parallelism, Precisions
from memcheck.job.lookup import EXPERTS, LATENT, NORM, Families, parts, words
from memcheck.job.versions import is_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcheck.job.lookup import Defaults
    from memcheck.job.types import Layout, Recipe


# `llama3` builds every model of Llama's shape, `deepseek_v3` has a router with softmax for DeepSeek V2's; GPT-OSS's
# experts with biases and attention with sinks, and Qwen 3.5's delta nets, have no forward pass here.
FAMILIES = Families(
    words("deepseek_v2 deepseek_v3 kimi_k2 llama mistral qwen3 qwen3_moe"),
    parts(
        Attention="heads kv_heads head_dim query_norm key_norm rotary_dim tensors",
        LatentAttention=LATENT,
        Mlp="width gated activation bias tensors",
        Moe=EXPERTS,
        SharedExperts="width",
        Block="mixer mlp input_norm mlp_norm",
        Norm=NORM,
    ),
    source="torchtitan/models/__init__.py",
)


MODELLED_SINCE = (0, 2, 3)
"""The first release whose steps are those of main in 2026."""


class Torchtitan(Framework):
    """torchtitan, whose releases before main of 2026 run other steps."""

    def replicated_recipe(self, recipe: Recipe, layout: Layout) -> tuple[Recipe, str]:
        """Return the recipe in fp32 with tensor or pipeline parallelism, which have no autocast context without FSDP
        (torchtitan/distributed/utils.py).
        """
        if layout.tensor * layout.pipeline == 1:
            return recipe, ""
        why = f"{self.name} applies mixed precision with tensor or pipeline parallelism only at zero_stage 3"
        return recipe._replace(compute="fp32", autocast=False), why

    def fewer_layers(self, options: Mapping[str, object], defaults: Defaults) -> tuple[int, int]:
        """Return by how many layers the first and the last pipeline stage are shorter: 1 each, unless the options say
        more.

        Source: torchtitan/config/configs.py.
        """
        fewer = []
        for end in ("first", "last"):
            name = f"pipeline_parallel_{end}_stage_less_layers"
            stated = options.get(name)
            stated_layers = stated if isinstance(stated, int) else None
            fewer.append(defaults.stated_or(f"training.options.{name}", stated_layers, 1, f"default of {self.name}"))
        return fewer[0], fewer[1]

    def note_releases(
        self, version: str | None, options: Mapping[str, object], recipe: Recipe, defaults: Defaults
    ) -> None:
        """Note among the defaults which commit of torchtitan is modelled, if the plan states no ``version``."""
        if version is None:
            why = "unknown: other releases keep other tensors"
            defaults.note("training.framework_version", "main of 2026, b5bcd76c6", why)

    def compiled_releases(self, version: str | None) -> tuple[float, float]:
        """Return the range between two releases of 2025: one configuration of Llama 3.1 8B took 49.6 GiB in March (PR
        #996) and 30.9 GiB in June.
        """
        return (1 - 30.9 / 49.6, 49.6 / 30.9 - 1) if is_before(version, MODELLED_SINCE) else (0.0, 0.0)

    @property
    def verify_runs_package(self) -> bool:
        """True: torchtitan's models and parallelisms run on the CPU, too."""
        return True


FRAMEWORK = Torchtitan(
    name="torchtitan",
    title="torchtitan",
    source="pytorch/torchtitan b5bcd76c6",
    style=Style(
        folder="torchtitan",
        activation_layout="packed",
        source="torchtitan models/ and torch 2.13 derivatives.yaml, replayed by memcheck.frameworks",
        uses_dtensor=True,
        compiles_blocks=True,
        compiled_losses=("standard", "chunked", "vocab-parallel"),
    ),
    families=FAMILIES,
    precisions=Precisions(
        default="bf16-mixed",
        recipes={
            "fp32": r.FP32,
            "bf16-mixed": r.AUTOCAST_BF16,
            "fp8-mixed": r.AUTOCAST_FP8,
            # training.dtype=bfloat16; gradients are still reduced in fp32, the only value of mixed_precision_reduce.
            "bf16-pure": r.BF16_PURE._replace(reduce="fp32"),
        },
        sharded={"bf16-mixed": r.FSDP2_BF16, "fp8-mixed": r.FSDP2_FP8},
    ),
    optimizers=Optimizers(implementation="fused", bitsandbytes=False),
    losses=Losses(default="standard", kinds=("standard", "chunked", "vocab-parallel"), vocab_parallel_when="tensor"),
    parallelism=Parallelism(
        zero_stages=(0, 1, 3),
        degrees=("tensor", "sequence", "context", "pipeline", "expert", "expert_tensor"),
        schedules=("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "dualpipe"),
        sequence_default=True,
    ),
    methods=("full", "lora"),
    default_attention="sdpa",
    attentions=("sdpa", "flash", "flex"),
    recompute=("none", "selective", "full"),
    selective_recompute="operators",
    options={
        "selective_ac_option": (str, int),
        "per_op_sac_force_recompute_mm_shapes_by_fqns": (list,),
        "memory_budget": (int, float),
        "disable_loss_parallel": (bool,),
        "enable_async_tensor_parallel": (bool,),
        "enable_fsdp_symm_mem": (bool,),
        "enable_cpu_offload": (bool,),
        "early_step_in_backward": (bool,),
        "fsdp_reshard_after_forward": (str,),
        "context_parallel_rotate_method": (str,),
        "pipeline_parallel_first_stage_less_layers": (int,),
        "pipeline_parallel_last_stage_less_layers": (int,),
        "pipeline_parallel_layers_per_stage": (int,),
        "enable_fsdp_float8_all_gather": (bool,),
        "disable_cuda_graphs": (bool,),
        "components": (list,),
        "micro_batches_per_run": (int,),
        "module": (str,),
    },
    choices={
        "fsdp_reshard_after_forward": ("default", "always", "never"),
        "context_parallel_rotate_method": ("allgather", "alltoall"),
    },
    harmless={
        "enable_fsdp_float8_all_gather": "gathered weights are estimated in 16 bits, an upper bound; so is the time",
        "enable_async_tensor_parallel": "products overlap with the exchange of their inputs; the time follows it",
    },
    unmodelled={
        "per_op_sac_force_recompute_mm_shapes_by_fqns": (
            ("moe.router.gate",),
            "makes selective recompute drop the products of other layers",
        ),
        "memory_budget": (None, "lets the compiler choose what is recomputed"),
        "disable_loss_parallel": (False, "takes the loss on replicated logits"),
        "enable_fsdp_symm_mem": (False, "moves FSDP's buffers to symmetric memory"),
        "early_step_in_backward": (False, "steps each parameter within backward and lets go of its gradient"),
        "context_parallel_rotate_method": ("allgather", "keeps one part of keys and values instead of all"),
        "pipeline_parallel_layers_per_stage": (None, "decides how many stages there are, as `virtual_stages` does"),
        "disable_cuda_graphs": (True, "captures the step in CUDA graphs, whose memory pools stay"),
    },
    lacks={
        "parallelism.gradient_sync": "every micro-batch is reduced: nothing in the trainer puts it off "
        "(torchtitan/trainer.py)",
        "parallelism.gradient_as_bucket_view": "no key of its configuration reaches the replicas' buckets "
        "(torchtitan/config/configs.py)",
        "training.precision.reduce": "`mixed_precision_reduce` has one value, float32 (torchtitan/config/configs.py)",
    },
    load_and_save=LoadAndSave(
        # trainer.py builds on the meta device, then to_empty; checkpoints are DCP's (components/checkpointer/dcp.py)
        initialization=("meta", "meta"),
        checkpoint=("sharded", "sharded"),
        asynchronous=True,
    ),
    fsdp2=Fsdp2(
        groups_of_ends=True,
        on_one_rank=True,
        prefetches_experts=True,  # distributed/fsdp.py: "set up explicit prefetching when EP is enabled"
        divides_gradients=True,  # distributed/fsdp.py, disable_fsdp_gradient_division: by 1.0
        loss_reduces_head=True,
        gathers_stages_again=False,  # get_fsdp_reshard_after_forward_policy: "default"
        cuts_expert_matrices="more-shards",
    ),
    clip_grad_norm=True,
    since={
        "expert matrices": (0, 2, 3),  # main since March 2026, after 0.2.2: "non-dim-0 FSDP sharding", #2668
        "kept exchanges": (0, 2),
    },
    errors_by_model=True,
    allocators=("expandable", "default"),
    timing="torchtitan",
    not_run="no torchtitan can be imported that runs it",
)
