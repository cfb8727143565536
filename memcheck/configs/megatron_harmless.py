"""Megatron-LM's arguments that move no memory of a training step: data, schedules, logs, checkpoints, launchers. Read
at d98e8a64dd of August 2026, each by what ``megatron/training`` and ``megatron/core`` do with it.

``accumulate-allreduce-grads-in-fp32`` is among them, as bf16 implies it, and ``log-num-zeros-in-grad``: the mask of one
gradient that it makes, a byte for each element, comes when the loss and all activations are gone.
"""

from __future__ import annotations

HARMLESS = frozenset(
    """
    train-iters train-samples train-data-path valid-data-path test-data-path data-path data-cache-path
    data-args-path split vocab-file merge-file tokenizer-type tokenizer-model tiktoken-pattern vocab-extra-ids
    dataloader-type num-workers no-mmap-bin-files mock-data per-split-data-args-path reset-position-ids
    reset-attention-mask eod-mask-loss lr min-lr decoupled-lr decoupled-min-lr lr-decay-style lr-decay-iters
    lr-decay-samples lr-warmup-fraction lr-warmup-iters lr-warmup-samples lr-warmup-init lr-wsd-decay-style
    lr-wsd-decay-samples lr-wsd-decay-iters weight-decay start-weight-decay end-weight-decay weight-decay-incr-style
    adam-beta1 adam-beta2 adam-eps override-opt_param-scheduler use-checkpoint-opt_param-scheduler
    use-checkpoint-opt-param-scheduler use-checkpoint-args init-method-std init-method-xavier-uniform norm-epsilon
    rotary-base rotary-interleaved rotary-scaling-factor rotary-seq-len-interpolation-factor use-rope-scaling mscale
    mscale-all-dim seed data-parallel-random-init apply-layernorm-1p
    apply-wd-to-qk-layernorm save load save-interval save-retain-interval
    no-save-rng no-load-optim no-load-rng finetune ckpt-assume-constant-structure
    ckpt-fully-parallel-save ckpt-fully-parallel-load no-ckpt-fully-parallel-save dist-ckpt-strictness
    dist-ckpt-format dist-ckpt-optim-fully-reshardable use-persistent-ckpt-worker async-strategy
    async-ckpt-use-cpu-shm auto-detect-ckpt-format use-dist-ckpt pretrained-checkpoint exit-on-missing-checkpoint
    no-use-tokenizer-model-from-checkpoint-args check-weight-hash-across-dp-replicas-interval verify-integrity
    use-mcore-models log-interval log-params-norm log-num-zeros-in-grad log-throughput
    log-progress log-energy log-memory-interval log-memory-to-tensorboard log-timers-to-tensorboard
    log-validation-ppl-to-tensorboard log-loss-scale-to-tensorboard log-batch-size-to-tensorboard
    log-world-size-to-tensorboard logging-level tensorboard-dir tensorboard-log-interval tensorboard-queue-size
    timing-log-level timing-log-option wandb-project wandb-entity wandb-exp-name wandb-save-dir eval-interval
    eval-iters eval-global-batch-size exit-interval exit-duration-in-mins exit-signal-handler
    distributed-backend distributed-timeout-minutes local-rank use-tp-pp-dp-mapping disable-gloo-process-groups
    high-priority-stream-groups manual-gc manual-gc-interval no-check-for-nan-in-loss-and-grad
    check-for-nan-in-loss-and-grad straggler-minmax-count log-straggler enable-experimental calculate-per-token-loss
    moe-aux-loss-coeff moe-router-bias-update-rate moe-router-enable-expert-bias
    moe-router-group-topk moe-router-num-groups moe-router-topk-scaling-factor moe-router-force-load-balancing
    moe-hybridep-num-sms mtp-loss-scaling-factor fim-data fim-rate fim-spm-rate muon-momentum muon-scale-mode
    muon-extra-scale-factor loss-scale initial-loss-scale min-loss-scale
    loss-scale-window hysteresis rerun-mode train-sync-interval profile profile-step-start profile-step-end
    profile-ranks use-pytorch-profiler node-rank node_rank master-addr master_addr master-port master_port
    rdzv-backend rdzv_backend rdzv-endpoint rdzv_endpoint rdzv-id rdzv_id standalone
    test-mode accumulate-allreduce-grads-in-fp32 max-tokens-to-oom
    use-fused-weighted-squared-relu data-impl error-injection-rate error-injection-type fp8-amax-compute-algo
    fp8-amax-history-len moe-token-drop-policy no-async-tensor-model-parallel-allreduce no-position-embedding
    rope-scaling-factor rope-type trust-remote-code
    """.split()  # noqa: SIM905  # a list of two hundred quoted names is harder to read
)
