"""Values with which a key of a plan needs less memory, as the schema of plans states them."""

# Written by `python -m docs.generate` from schemas/plan.schema.json: edit that and run it again.

from __future__ import annotations

LOWER: dict[str, tuple[str, tuple[tuple[object, str], ...]]] = {
    "training.reference": (
        "same",
        (
            ("host", "keep the reference in host memory"),
            ("precomputed", "compute the log-probabilities of the reference once, before the training"),
        ),
    ),
    "training.base.double": (
        "other",
        (
            (True, "quantise the constants of the 4-bit weights once more"),
        ),
    ),
    "training.evaluation.logits": (
        "same",
        (
            ("dropped", "evaluate the loss alone (prediction_loss_only): metrics of the logits are not computed"),
        ),
    ),
    "training.optimizer.in_backward": (
        "same",
        (
            (True, "step each tensor as its gradient is made, and free the gradient"),
        ),
    ),
    "training.kernels.ssm": (
        "same",
        (
            ("fused", "install the fused kernels of the recurrent layers (see training.kernels)"),
        ),
    ),
    "training.options.reference_fsdp": (
        "same",
        (
            ("per_layer", "wrap each layer of the reference in FSDP, before the trainer wraps it whole"),
        ),
    ),
    "training.options.wraps_adapters": (
        "same",
        (
            (True, "make FSDP units of the adapters (the wrap policy of PEFT)"),
        ),
    ),
    "training.options.vit_gradient_checkpointing": (
        "same",
        (
            (True, "recompute the blocks of the vision tower in backward"),
        ),
    ),
    "training.options.fused_norms": (
        "same",
        (
            (True, "run the norms in fused kernels"),
        ),
    ),
    "training.options.reduce_bucket_size": (
        "same",
        (
            (50000000, "reduce gradients in buckets of 50,000,000 elements"),
        ),
    ),
    "training.options.stage3_max_live_parameters": (
        "same",
        (
            (50000000, "keep 50,000,000 gathered parameters at most"),
        ),
    ),
    "training.options.stage3_param_persistence_threshold": (
        "same",
        (
            (10000, "shard every parameter of more than 10,000 elements"),
        ),
    ),
    "training.options.suggested_communication_unit_size": (
        "same",
        (
            (1000000, "gather parameters in units of 1,000,000 elements"),
        ),
    ),
    "training.options.fsdp_double_buffer": (
        "same",
        (
            (True, "gather parameters into two buffers that are used in turn"),
        ),
    ),
    "training.options.bias_swiglu_fusion": (
        "same",
        (
            (True, "fuse the gated activation"),
        ),
    ),
    "training.options.apply_rope_fusion": (
        "same",
        (
            (True, "fuse the rotary embedding"),
        ),
    ),
    "training.options.memory_efficient_layer_norm": (
        "same",
        (
            (True, "keep the outputs of norms instead of their inputs"),
        ),
    ),
    "training.options.overlap_comm": (
        "same",
        (
            (False, "reduce gradients after the backward pass of a bucket, not during the next one"),
        ),
    ),
    "training.options.deallocate_pipeline_outputs": (
        "same",
        (
            (True, "free the outputs of a pipeline stage after they are sent"),
        ),
    ),
    "training.options.overlap_grad_reduce": (
        "same",
        (
            (False, "reduce gradients after the backward pass, not during it"),
        ),
    ),
    "training.options.tp_linear_async_communication": (
        "same",
        (
            (True, "overlap the communication of tensor parallelism with the products"),
        ),
    ),
}
"""Dotted key to what it does to the result of the training (`same` or `other`), and its values with their
words. The value that frees least comes first."""
