"""Rules about the keys and values of a plan, and about its model: found while these are read, without a check."""

from __future__ import annotations

from memcheck.plan.finding import (
    CONFLICTING_KEYS,
    INVALID_PLAN,
    INVALID_VALUE,
    MISSING_KEY,
    NO_MEMORY_MODEL,
    RENAMED_KEY,
    UNKNOWN_GPU,
    UNKNOWN_KEY,
    UNKNOWN_MODEL,
    UNREAD_CONFIG_KEY,
    UNREADABLE_CONFIG,
    UNSUPPORTED_ARCHITECTURE,
    WRONG_TYPE,
)
from memcheck.rules.types import file_rule

MEM010 = file_rule(
    INVALID_PLAN,
    """The document is not a plan.

## What it does

Reports a document that carries the plan mark but is no mapping, or has a version that memcheck does not know.

## Why it matters

Without the version, nothing says how the file is to be read.

## Example

    memcheck: 2

## How to fix

Write `memcheck: 1`, or update memcheck.

## Options

None.

## Source

`schemas/plan.schema.json`.
""",
)

MEM011 = file_rule(
    UNKNOWN_KEY,
    """The plan format has no such key.

## What it does

Reports every key that the schema does not have, with the closest key that it has. For a key of another tool
(transformers, PEFT, TRL, Accelerate, DeepSpeed, Megatron-LM, vLLM, a cloud) it gives the plan's key and value. If the
key has none, it gives the reason why it can be left out.

## Why it matters

A misspelt key would be ignored, and its default used instead: the prediction would be of another plan.

## Example

    training: {micro_batchsize: 4}

## How to fix

Correct the key; `--fix` does where only one key is close. A framework's own knobs go under `training.options`.

## Options

None.

## Source

`schemas/plan.schema.json`.
""",
)

MEM012 = file_rule(
    MISSING_KEY,
    """A required key is missing.

## What it does

Reports keys without which the memory cannot be computed: the model, the GPU, the sequence length.

## Why it matters

memcheck never assumes a value that decides sizes without saying so, and for these no default is sensible.

## Example

    training: {micro_batch_size: 1}      # no sequence_length

## How to fix

Add the key.

## Options

None.

## Source

`schemas/plan.schema.json`.
""",
)

MEM013 = file_rule(
    WRONG_TYPE,
    """A value has the wrong type.

## What it does

Reports text where a number belongs, a number where a mapping belongs, and so on.

## Why it matters

Guessing what was meant would hide mistakes.

## Example

    training: {sequence_length: long}

## How to fix

Write a value of the type that the finding names. `128k` is written 131072.

## Options

None.

## Source

`schemas/plan.schema.json`.
""",
)

MEM014 = file_rule(
    INVALID_VALUE,
    """A value is outside of what its key allows.

## What it does

Reports words that are not in a key's list, with the closest ones that are, and numbers outside of their range.

## Why it matters

Guessing what was meant would hide mistakes.

## Example

    training: {precision: bf16}      # bf16-mixed or bf16-pure: 16 or 8 bytes a parameter

## How to fix

Write one of the values that the finding lists.

## Options

None.

## Source

`schemas/plan.schema.json`.
""",
)

MEM015 = file_rule(
    CONFLICTING_KEYS,
    """Keys that exclude each other are both set.

## What it does

Reports `training` together with `inference`, `gradient_accumulation_steps` together with `global_batch_size`, and two
ways to give the model.

## Why it matters

Only one of the two can hold.

## Example

    training: {gradient_accumulation_steps: 4, global_batch_size: 64}

## How to fix

Remove one of the two.

## Options

None.

## Source

`schemas/plan.schema.json`.
""",
)

MEM016 = file_rule(
    RENAMED_KEY,
    """A key has the name that another tool gives it.

## What it does

Reports a key that a plan does not have, but that another tool has for exactly the same setting:
`per_device_train_batch_size`, `max_seq_length`, `tensor_model_parallel_size`, `gradient_checkpointing`. What only
resembles a key is MEM011's. A key of the plan format that gets another name in a later version is reported so, too.

## Why it matters

Plans are written from launch scripts and configs that are at hand. An unknown key would be ignored, and the plan's
default used instead of what was pasted.

## Example

    training:
      per_device_train_batch_size: 4      # transformers; here it is micro_batch_size
      gradient_checkpointing: true        # here it is activation_checkpointing: full

## How to fix

`--fix` writes the plan's key, and the plan's value where that is written differently. It leaves the line alone where
the plan states the same setting twice, or where the value has no equal.

## Options

None. A framework's own knobs keep their names under `training.options`.

## Source

The tools' own documentation; the table is in [the plan format](../plan-format.md#keys-under-the-names-of-other-tools).
""",
)

MEM020 = file_rule(
    UNKNOWN_MODEL,
    """The catalog has no such model.

## What it does

Reports a model name that is in the catalog under no name or alias, with the closest ones that are.

## Why it matters

Without the model's dimensions nothing can be computed.

## Example

    model: llama-3.1-8x

## How to fix

Correct the name (`memcheck list models`), or give the model's `config`, `architecture` or `rough` figures.

## Options

None.

## Source

The catalog.
""",
)

MEM021 = file_rule(
    UNKNOWN_GPU,
    """The catalog has no such GPU.

## What it does

Reports a GPU name that is in the catalog under no name or alias, with the closest ones that are.

## Why it matters

Without its memory nothing can be compared.

## Example

    hardware: {gpu: h100-90gb}

## How to fix

Correct the name (`memcheck list gpus`), or state the memory: `gpu: {name: mi455x, memory_gib: 431.2}`.

## Options

None.

## Source

The catalog.
""",
)

MEM022 = file_rule(
    UNSUPPORTED_ARCHITECTURE,
    """There is no memory model for this kind of model.

## What it does

Reports a `model_type` that no family of memcheck reads.

## Why it matters

Another family's arithmetic would give a number, but not this model's.

## Example

    model: {architecture: {model_type: my-new-model, hidden_size: 4096}}

## How to fix

Use `rough` figures, or add a family (one file, see CONTRIBUTING.md).

## Options

None.

## Source

`memcheck/models/families`.
""",
)

MEM023 = file_rule(
    UNREAD_CONFIG_KEY,
    """A key of the model's config bears on sizes and is not understood.

## What it does

Reports keys of a configuration that change the model's size and that its family does not read, and keys with values
that it cannot use.

## Why it matters

Reading over such a key would give a wrong number with confidence.

## Example

    model: {name: llama-3.1-8b, overrides: {num_attention_heads: many}}

## How to fix

Correct the value; if the key is right, its family has to learn it (one file, see CONTRIBUTING.md).

## Options

None.

## Source

`memcheck/models/families`.
""",
)

MEM024 = file_rule(
    UNREADABLE_CONFIG,
    """The model's config file cannot be read.

## What it does

Reports a `model.config` that is missing, is no JSON, or holds no JSON object.

## Why it matters

Without the model's dimensions nothing can be computed.

## Example

    model: {config: ./no-such/config.json}

## How to fix

Correct the path; it is relative to the plan.

## Options

None.

## Source

The Hugging Face `config.json` format.
""",
)

MEM025 = file_rule(
    NO_MEMORY_MODEL,
    """There is no memory model for what the plan asks.

## What it does

Reports a combination that the framework can run and that memcheck cannot estimate, at the key that asks for it:

- a model that the framework does not build, or a part of it without a forward pass here;
- adapters on a `rough` model;
- an offloading mode whose buffers are not modelled.

## Why it matters

A number for something else would be worse than none. The plan is not estimated, so it does not pass.

## Example

    model: {rough: {parameters: 700M, layers: 32, hidden_size: 4096, activation_multiplier: 10}}
    training: {method: lora}   # which matrices get adapters is not known

## How to fix

The help line names the nearest plan that has a model. Otherwise exclude the file from the check.

## Options

None.

## Source

`memcheck/memory`.
""",
)
