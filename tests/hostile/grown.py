"""Inputs of every kind in any size: what a file may repeat, and the command that reads it.

Each kind makes files, by name, of a count and a word that sets them apart from those of other runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

Files = Mapping[str, str]

HEAD = "memcheck: 1\nname: {name}\nmodel: {model}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8}}\n"
SETTINGS = "framework: pytorch, micro_batch_size: 1, sequence_length: 128"
PASSES = HEAD + f"training: {{{{{SETTINGS}}}}}\n"
FAILS = (
    "memcheck: 1\nname: {name}\nmodel: llama-3.1-8b\nhardware: {{gpu: h100-80gb, gpus_per_node: 1}}\n"
    "training: {{framework: torchtitan, micro_batch_size: 1, sequence_length: 4096, activation_checkpointing: full}}\n"
)
SOURCED = (
    "memcheck: 1\nname: {name}\nsource: {{{kind}: ./{file}}}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8}}\n"
)
LAUNCH = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 128 --num-attention-heads 4 "
    "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000"
)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}


def plan(name: str, model: str = "gpt2", **more: str) -> str:
    """A plan that passes, with more keys at its end."""
    return PASSES.format(name=name, model=model) + "".join(f"{key}: {value}\n" for key, value in more.items())


def training(name: str, more: str) -> str:
    """A plan with more keys in its training section, in flow style."""
    return HEAD.format(name=name, model="gpt2") + f"training: {{{SETTINGS}, {more}}}\n"


def each(count: int, text: str, between: str = "") -> str:
    """A text for every number below a count, with ``{0}`` for the number."""
    return between.join(text.replace("{0}", str(number)) for number in range(count))


def documents(text: Callable[[str], str]) -> Callable[[int, str], Files]:
    """Plans of one file."""
    return lambda count, salt: {"p.yaml": "---\n".join(text(f"{salt}-{number}") for number in range(count))}


def files(text: Callable[[str], str], more: Files = {}) -> Callable[[int, str], Files]:  # noqa: B006
    """Plans in files of their own, in folders of fifty."""
    return lambda count, salt: {
        **{f"d{number // 50}/p{number}.yaml": text(f"{salt}-{number}") for number in range(count)},
        **more,
    }


def sourced(kind: str, name: str, text: Callable[[int, str], str]) -> Callable[[int, str], Files]:
    """A plan over a config of one framework."""
    return lambda count, salt: {
        "p.yaml": SOURCED.format(name=salt, kind=kind, file=name),
        name: f"{text(count, salt)}",
    }


def script(lines: Callable[[int], str], kind: str = "megatron", job: str = LAUNCH) -> Callable[[int, str], Files]:
    """A plan over a launch script that has lines before its command."""
    return sourced(kind, "run.sh", lambda count, salt: f"# {salt}\n{lines(count)}{job}\n")


def one_file(text: Callable[[int, str], str], name: str = "p.yaml") -> Callable[[int, str], Files]:
    """One plan."""
    return lambda count, salt: {name: text(count, salt)}


def accepted(count: int, salt: str) -> str:
    """A baseline's text."""
    found = [
        {"path": f"d{number}/p{number}.yaml", "plan": f"{salt}-{number}", "code": "MEM101", "utilization": 1.5}
        for number in range(count)
    ]
    return json.dumps({"baseline": 1, "memcheck": "0", "findings": found})


Kind = tuple[int, Callable[[int, str], Files], list[str]]
CHECK = ["check", "--no-cache", "--jobs", "1", "p.yaml"]
TREE = ["check", "--no-cache", "--jobs", "1", "."]
GPU = ["--gpu", "h100-80gb", "--gpus-per-node", "8"]

PLANS: dict[str, Kind] = {
    "documents that pass": (60, documents(plan), CHECK),
    "documents that fail": (20, documents(lambda name: FAILS.format(name=name)), CHECK),
    "documents that differ and fail": (
        10,
        documents(lambda name: FAILS.format(name=name).replace("4096", str(1000 + sum(map(ord, name)) + 64 * int(name.split("-")[1])))),
        CHECK,
    ),
    "documents with unknown keys": (60, documents(lambda name: plan(name, kk="1")), CHECK),
    "empty documents": (300, one_file(lambda count, salt: f"# {salt}\n" + "---\n" * count + plan(salt)), CHECK),
    "documents of aliases": (
        20,
        documents(lambda name: plan(name, kk=f"&a [{each(40, 'a', ', ')}]", kl=f"[{each(10, '*a', ', ')}]")),
        CHECK,
    ),
    "unknown keys": (300, one_file(lambda count, salt: plan(salt) + each(count, "k{0}: 1\n")), CHECK),
    "nested unknown keys": (300, one_file(lambda count, salt: training(salt, each(count, "k{0}: 1", ", "))), CHECK),
    "keys in a block": (
        300,
        one_file(
            lambda count, salt: f"{HEAD.format(name=salt, model='gpt2')}training:\n  micro_batch_size: 1\n"
             "  sequence_length: 128\n  options:\n"
            + each(count, "    k{0}: 1\n")
        ),
        CHECK,
    ),
    "a list": (500, one_file(lambda count, salt: training(salt, f"freeze: [{each(count, 'm{0}', ', ')}]")), CHECK),
    "layers that are frozen": (
        300,
        one_file(lambda count, salt: training(salt, "freeze: [" + each(count, "'layers:{0}-9'", ", ") + "]")),
        CHECK,
    ),
    "adapted modules": (
        300,
        one_file(
            lambda count, salt: training(
                salt, f"method: lora, lora: {{rank: 8, target_modules: [{each(count, 'm{0}', ', ')}]}}"
            )
        ),
        CHECK,
    ),
    "anchors": (
        300,
        one_file(lambda count, salt: plan(salt) + each(count, "a{0}: &a{0} 1\nb{0}: *a{0}\n")),
        CHECK,
    ),
    "a missing anchor behind many": (
        500,
        one_file(lambda count, salt: plan(salt) + each(count, "a{0}: &a{0} 1\n") + "z: *none\n"),
        CHECK,
    ),
    "merge keys": (
        200,
        one_file(
            lambda count, salt: plan(salt)
            + each(count, "a{0}: &a{0} {k{0}: 1}\n")
            + f"z: {{<<: [{each(count, '*a{0}', ', ')}]}}\n"
        ),
        CHECK,
    ),
    "merges of merges": (
        60,
        one_file(
            lambda count, salt: plan(salt)
            + "a0: &a0 {k0: 1}\n"
            + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}\n" for n in range(1, 60))
            + each(count, "b{0}: {<<: *a9}\n")
        ),
        CHECK,
    ),
    "duplicate keys": (300, one_file(lambda count, salt: plan(salt) + "kk: 1\n" * count), CHECK),
    "comments": (2000, one_file(lambda count, salt: plan(salt) + each(count, "# note {0}\n")), CHECK),
    "comments that suppress": (
        200,
        one_file(
            lambda count, salt: plan(salt)
            + each(count, "k{0}: 1  # memcheck: ignore[MEM011] a reason of so many letters\n")
        ),
        CHECK,
    ),
    "comments on unknown rules": (
        200,
        one_file(lambda count, salt: plan(salt) + each(count, "# memcheck: ignore[MEM9{0}] a reason of its own\n")),
        CHECK,
    ),
    "a long name": (20_000, one_file(lambda count, salt: plan(salt + "x" * count)), CHECK),
    "a long name of wide letters": (20_000, one_file(lambda count, salt: plan(salt + "\u6f22" * count)), CHECK),
    "a long name of marks": (20_000, one_file(lambda count, salt: plan(f"'{salt}" + "*_[<" * (count // 4) + "'")), CHECK),
    "a long model": (20_000, one_file(lambda count, salt: plan(salt, model="llama-" + "x" * count)), CHECK),
    "a long word": (
        20_000,
        one_file(lambda count, salt: plan(salt).replace("h100-80gb", "h100" + "-x" * (count // 2))),
        CHECK,
    ),
    "a long key": (20_000, one_file(lambda count, salt: plan(salt) + f"? {'k' * count}\n: 1\n"), CHECK),
    "a long key of many": (
        100,
        one_file(lambda count, salt: plan(salt) + f"? {'k' * 900}\n: {{{each(count, 'k{0}: 1', ', ')}}}\n"),
        CHECK,
    ),
    "a long text of several lines": (
        2000,
        one_file(lambda count, salt: plan(salt) + "description: |\n" + "  some words\n" * count),
        CHECK,
    ),
    "a long quoted text": (
        2000,
        one_file(lambda count, salt: plan(salt) + 'description: "' + "some words\n  " * count + '"\n'),
        CHECK,
    ),
    "escapes": (3000, one_file(lambda count, salt: plan(salt) + 'description: "' + "\\u001b[31m" * count + '"\n'), CHECK),
    "levels": (4000, one_file(lambda count, salt: plan(salt) + "z: " + "[" * count + "]" * count + "\n"), CHECK),
    "traps of numbers": (
        200,
        one_file(lambda count, salt: training(salt, f"options: {{{each(count, 'o{0}: 1e-5', ', ')}}}")),
        CHECK,
    ),
    "traps to fix": (
        200,
        one_file(lambda count, salt: training(salt, f"options: {{{each(count, 'o{0}: yes', ', ')}}}")),
        ["check", "--diff", "p.yaml"],
    ),
    "traps on lines to fix": (
        200,
        one_file(
            lambda count, salt: HEAD.format(name=salt, model="gpt2")
            + "training:\n  micro_batch_size: 1\n  sequence_length: 128\n  options:\n"
            + each(count, "    o{0}: yes\n    p{0}: 1\n")
        ),
        ["check", "--fix", "p.yaml"],
    ),
    "traps of documents to fix": (
        60,
        documents(lambda name: training(name, "compile: yes")),
        ["check", "--diff", "p.yaml"],
    ),
    "remedies of documents to fix": (
        10,
        documents(lambda name: FAILS.format(name=name)),
        ["check", "--diff", "--unsafe-fixes", "p.yaml"],
    ),
    "overrides": (
        300,
        one_file(
            lambda count, salt: plan(salt, model=f"{{name: gpt2, overrides: {{{each(count, 'k{0}: 1', ', ')}}}}}")
        ),
        CHECK,
    ),
    "layers of a model": (
        500,
        one_file(
            lambda count, salt: plan(
                salt,
                model="{architecture: "
                + json.dumps({**LLAMA, "num_hidden_layers": count, "layer_types": ["full_attention"] * count})
                + "}",
            )
        ),
        CHECK,
    ),
    "plans of one config.json": (
        30,
        lambda count, salt: {
            **documents(lambda name: plan(name, model="{config: ./config.json}"))(count, salt),
            "config.json": json.dumps({**LLAMA, **{f"k{n}": salt for n in range(20 * count)}}),
        },
        CHECK,
    ),
    "a config.json of many keys": (
        2000,
        lambda count, salt: {
            "p.yaml": plan(salt, model="{config: ./config.json}"),
            "config.json": json.dumps({**LLAMA, **{f"k{n}": 1 for n in range(count)}}),
        },
        CHECK,
    ),
    "plans that extend one": (
        30,
        lambda count, salt: {
            **documents(lambda name: f"extends: ./base.yaml\nmemcheck: 1\nname: {name}\n")(count, salt),
            "base.yaml": plan(salt) + f"# {'x' * 100}\n" * (20 * count),
        },
        CHECK,
    ),
    "plans of one script": (
        20,
        lambda count, salt: {
            **documents(lambda name: SOURCED.format(name=name, kind="megatron", file="run.sh"))(count, salt),
            "run.sh": f"# {salt}\n" + f"# {'x' * 60}\n" * (20 * count) + LAUNCH + "\n",
        },
        CHECK,
    ),
    "plans of many scripts": (
        15,
        lambda count, salt: {
            "p.yaml": "---\n".join(
                SOURCED.format(name=salt, kind="megatron", file=f"run{n}.sh") for n in range(count)
            ),
            **{f"run{n}.sh": f"# {salt}\n{LAUNCH}\n" for n in range(count)},
        },
        CHECK,
    ),
    "plans of one config of many keys": (
        8,
        lambda count, salt: {
            **documents(
                lambda name: SOURCED.format(name=name, kind="deepspeed", file="ds.json")
                + "model: gpt2\ntraining: {micro_batch_size: 1, sequence_length: 128}\n"
            )(count, salt),
            "ds.json": json.dumps({"zero_optimization": {"stage": 3}, **{f"k{n}": salt for n in range(50 * count)}}),
        },
        CHECK,
    ),
}

_LINES: dict[str, tuple[int, Callable[[int], str]]] = {
    "comments": (2000, lambda count: "# a comment\n" * count),
    "variables": (1000, lambda count: each(count, "A{0}=1\n")),
    "variables of variables": (1000, lambda count: "A0=1\n" + "".join(f"A{n}=$A{n - 1}\n" for n in range(1, count))),
    "ifs": (500, lambda count: each(count, 'if [ "$A" = {0} ]; then\n  B=1\nfi\n')),
    "nested ifs": (500, lambda count: 'if [ "$A" = 1 ]; then\n' * count + "B=1\n" + "fi\n" * count),
    "nested ifs that are known": (500, lambda count: "A=1\n" + 'if [ "$A" = 1 ]; then\n' * count + "fi\n" * count),
    "nested ifs with else": (
        400,
        lambda count: 'if [ "$A" = 1 ]; then\nB=1\nelse\n' * count + "B=1\n" + "fi\n" * count,
    ),
    "one if with many branches": (500, lambda count: "if [ $A = x ]; then B=1\n" + each(count, "elif [ $A = {0} ]; then\nB={0}\n") + "fi\n"),
    "ifs in a line": (500, lambda count: "if [ a = b ]; then X=1; fi; " * count + "\n"),
    "a case": (500, lambda count: "case $A in\n" + each(count, "  x{0}) B=1 ;;\n") + "esac\n"),
    "nested cases": (300, lambda count: "case $A in\nx)\n" * count + "esac\n" * count),
    "loops": (500, lambda count: each(count, "for i in 1 2; do\n  echo $i\ndone\n")),
    "nested loops": (500, lambda count: "for i in 1 2; do\n" * count + "done\n" * count),
    "functions": (500, lambda count: each(count, "f{0}() {\n  echo 1\n}\n")),
    "arrays": (300, lambda count: each(count, "A{0}=(\n  --a{0} 1\n)\n")),
    "an array": (1000, lambda count: "A=(\n" + each(count, "  --a{0} 1\n") + ")\n"),
    "arrays that are used": (300, lambda count: "A=(--x 1)\n" + "python x.py ${A[@]}\n" * count),
    "arguments in a variable": (300, lambda count: each(count, 'A{0}="--a{0} 1"\n')),
    "arguments that are added": (300, lambda count: each(count, 'A+=" --a{0} 1"\n')),
    "arguments that are unset in branches": (
        100,
        lambda count: f'A="{each(count, "--a{0}", " ")}"\nif $B; then\n' + "A=2\n" * (count // 10) + "fi\n",
    ),
    "documents of its own": (200, lambda count: each(count, "cat > f{0}.json <<EOF\n{}\nEOF\n")),
    "documents without an end": (500, lambda count: each(count, "cat > f{0}.json <<EOF{0}\n")),
    "arithmetic": (500, lambda count: "A=8\n" + each(count, "B{0}=$((A * 2 / 4))\n")),
    "arithmetic in a line": (500, lambda count: "A=8\nB=1" + "$((A * 2))" * count + "\n"),
    "tests": (500, lambda count: each(count, "[ -z $A ] && B{0}=1\n")),
    "tests in a line": (500, lambda count: "[ a ] && " * count + "X=1\n"),
    "defaults": (500, lambda count: each(count, ': "${A{0}:=1}"\n')),
    "defaults of defaults": (300, lambda count: "X=" + "${A:-" * count + "1" + "}" * count + "\n"),
    "exports": (500, lambda count: each(count, "export A{0}=1\n")),
    "exports in a line": (500, lambda count: "export " + each(count, "A{0}=1 ") + "\n"),
    "folders": (300, lambda count: each(count, 'D{0}=$(cd "$(dirname "$0")" && pwd)\n')),
    "what Slurm is asked for": (500, lambda count: "#SBATCH --nodes=2\n" * count),
    "lines that go on": (1000, lambda count: "echo \\\n" + "  a \\\n" * count + "  b\n"),
    "arguments on lines that go on": (300, lambda count: "python x.py \\\n" + each(count, "  --a{0} 1 \\\n") + "  --b 1\n"),
    "arguments in a line": (300, lambda count: "python x.py " + each(count, "--a{0} 1 ") + "\n"),
    "words in a line": (1000, lambda count: "python x.py " + each(count, "a{0} ") + "\n"),
    "overrides": (300, lambda count: "tune run x --config y " + each(count, "a{0}=1 ") + "\n"),
    "overrides on lines": (300, lambda count: "tune run x --config y \\\n" + each(count, "  a{0}=1 \\\n") + "  b=1\n"),
    "jobs": (100, lambda count: each(count, "torchrun x.py --learning_rate {0}\n")),
    "jobs in a line": (100, lambda count: each(count, "torchrun x.py --learning_rate {0}; ") + "\n"),
    "pipes": (500, lambda count: "echo a " + "| cat " * count + "\n"),
    "installers": (300, lambda count: each(count, "pip install a{0} --upgrade\n")),
    "variables that nobody sets": (300, lambda count: each(count, "python x.py $A{0}\n")),
    "variables in a word": (500, lambda count: "A=1\nB=" + "$A" * count + "\n"),
    "scripts that start scripts": (300, lambda count: each(count, "bash run{0}.sh --a 1\n")),
}
"""Lines of a launch script."""
_CHARACTERS = " \"'()$`\\#=;|&<>{}[]-~*?!,:/%@\t.x1"
"""Each of them, repeated on one line."""
_PAIRS = ("$(", "${", "$((", "<<", ">>", "&&", "||", "[ ", "[[ ", "{ ", "--", " -", "-a ", "--a=", "a=", "a=(", '="', "$a", "${a}", "if ", "then ", "; fi", "case ", "do ", ") ", "\\ ", " #", "a.py ", "bash ", "torchrun ", "cat <<", "A=$(", ": ${A:=", "$(cd $(dirname ")
"""Likewise."""

SCRIPTS: dict[str, Kind] = {
    **{f"script: {name}": (count, script(lines), CHECK) for name, (count, lines) in _LINES.items()},
    **{
        f"script: a line of {text!r}": (4000, script(lambda count, text=text: "x" + text * count + "\n"), CHECK)  # type: ignore[misc]
        for text in (*_CHARACTERS, *_PAIRS)
    },
    "script: jobs of trl": (
        100,
        script(
            lambda count: each(
                count,
                "accelerate launch trl/scripts/sft.py --model_name_or_path meta-llama/Llama-3.1-8B --learning_rate {0}\n",
            ),
            "trl",
            "",
        ),
        CHECK,
    ),
    "script: target modules of trl": (
        500,
        sourced(
            "trl",
            "run.sh",
            lambda count, salt: f"# {salt}\naccelerate launch trl/scripts/sft.py --model_name_or_path gpt2 "
            f"--use_peft --lora_target_modules {each(count, 'm{0} ')}\n",
        ),
        CHECK,
    ),
    "script: jobs of swift": (
        100,
        script(lambda count: each(count, "swift sft --model Qwen/Qwen2.5-7B --learning_rate {0}\n"), "ms-swift", ""),
        CHECK,
    ),
}

AXOLOTL = "base_model: NousResearch/Llama-3.2-1B\nmicro_batch_size: 1\nsequence_len: 128\ndatasets: []\n"
TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 128
"""
RECIPE = (
    "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\ntokenizer: {max_seq_len: 128}\nbatch_size: 1\n"
    "optimizer: {_component_: torch.optim.AdamW}\ndtype: bf16\n"
    "loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}\n"
)
CONFIGS: dict[str, Kind] = {
    "yaml: keys": (300, sourced("axolotl", "a.yaml", lambda count, salt: AXOLOTL + each(count, f"k{{0}}: {salt}\n")), CHECK),
    "yaml: nested keys": (
        300,
        sourced("axolotl", "a.yaml", lambda count, salt: f"{AXOLOTL}z{salt}:\n" + each(count, "  k{0}: 1\n")),
        CHECK,
    ),
    "yaml: a long key of many": (
        100,
        sourced(
            "axolotl",
            "a.yaml",
            lambda count, salt: f"{AXOLOTL}? {salt}{'k' * 900}\n: {{{each(count, 'k{0}: 1', ', ')}}}\n",
        ),
        CHECK,
    ),
    "yaml: a list": (500, sourced("axolotl", "a.yaml", lambda count, salt: f"{AXOLOTL}z{salt}: [{'a, ' * count}]\n"), CHECK),
    "yaml: frozen parts": (
        200,
        sourced(
            "axolotl",
            "a.yaml",
            lambda count, salt: f"{AXOLOTL}# {salt}\nunfrozen_parameters:\n" + each(count, "  - model.layers.{0}.mlp\n"),
        ),
        CHECK,
    ),
    "yaml: references": (
        200,
        sourced(
            "torchtune",
            "r.yaml",
            lambda count, salt: f"{RECIPE}a0: x{salt}\n" + "".join(f"a{n}: ${{a{n - 1}}}y\n" for n in range(1, count)),
        ),
        CHECK,
    ),
    "yaml: references that double": (
        200,
        sourced(
            "torchtune",
            "r.yaml",
            lambda count, salt: f"{RECIPE}a0: x{salt}\n"
            + "".join(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 40))
            + each(count, "b{0}: ${a39}\n"),
        ),
        CHECK,
    ),
    "json: keys": (
        300,
        sourced(
            "deepspeed",
            "ds.json",
            lambda count, salt: json.dumps({"zero_optimization": {"stage": 3}, **{f"k{n}": salt for n in range(count)}}),
        ),
        CHECK,
    ),
    "json: a long key of many": (
        100,
        sourced(
            "deepspeed",
            "ds.json",
            lambda count, salt: json.dumps({"zero_optimization": {"stage": 3}, salt + "k" * 5000: {f"k{n}": 1 for n in range(count)}}),
        ),
        CHECK,
    ),
    "json: levels": (
        200,
        sourced("deepspeed", "ds.json", lambda count, salt: '{"zero_optimization": {"stage": 3}, "a":' + '{"a":' * count + f'"{salt}"' + "}" * count + "}"),
        CHECK,
    ),
    "json: a long text": (
        20_000,
        sourced("deepspeed", "ds.json", lambda count, salt: json.dumps({"zero_optimization": {"stage": 3}, "x": salt + "\\" * count})),
        CHECK,
    ),
    "toml: keys": (300, sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'k{{0}} = "{salt}"\n')), CHECK),
    "toml: tables": (300, sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'[t{{0}}]\nk = "{salt}"\n')), CHECK),
    "toml: tables of a list": (
        300,
        sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'[[t]]\nk{{0}} = "{salt}"\n')),
        CHECK,
    ),
    "toml: a list": (500, sourced("torchtitan", "t.toml", lambda count, salt: f'{TITAN}x = ["{salt}", ' + "'1', " * count + "]\n"), CHECK),
    "toml: an inline table": (
        300,
        sourced("torchtitan", "t.toml", lambda count, salt: f'{TITAN}x = {{s = "{salt}", ' + each(count, "k{0} = 1", ", ") + "}\n"),
        CHECK,
    ),
    "toml: dotted keys": (300, sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'a.b.k{{0}} = "{salt}"\n')), CHECK),
    "toml: a long text": (
        20_000,
        sourced("torchtitan", "t.toml", lambda count, salt: f'{TITAN}x = """{salt}' + "a.b = 1 [x] " * (count // 12) + '"""\n'),
        CHECK,
    ),
    "import: keys": (
        300,
        one_file(lambda count, salt: AXOLOTL + each(count, f"k{{0}}: {salt}\n"), "a.yaml"),
        ["import", "a.yaml", *GPU],
    ),
    "import: a script": (
        300,
        one_file(lambda count, salt: f"# {salt}\n" + each(count, "A{0}=1\n") + LAUNCH + "\n", "run.sh"),
        ["import", "run.sh", *GPU],
    ),
    "estimate: a script": (
        300,
        one_file(lambda count, salt: f"# {salt}\n" + each(count, "A{0}=1\n") + LAUNCH + "\n", "run.sh"),
        ["estimate", "run.sh", *GPU],
    ),
    "configuration: patterns of configs": (
        100,
        lambda count, salt: {
            "p.yaml": plan(salt),
            "memcheck.toml": each(count, '[[configs]]\npath = "d{0}/*.yaml"\ngpu = "h200"\n'),
        },
        CHECK,
    ),
    "configuration: rules of files": (
        100,
        lambda count, salt: {
            "p.yaml": plan(salt),
            "memcheck.toml": "[per-file-ignores]\n" + each(count, '"d{0}/**" = ["MEM101"]\n'),
        },
        CHECK,
    ),
    "configuration: severities": (
        300,
        lambda count, salt: {"p.yaml": plan(salt), "memcheck.toml": "select = [" + '"MEM101", ' * count + "]\n"},
        CHECK,
    ),
    "configuration: unknown rules": (
        300,
        lambda count, salt: {"p.yaml": plan(salt), "memcheck.toml": "select = [" + '"MEMX01", ' * count + "]\n"},
        CHECK,
    ),
    "configuration: GPUs": (
        300,
        lambda count, salt: {
            "p.yaml": plan(salt),
            "memcheck.toml": "[policy]\nallowed-gpus = [" + '"a*b*c*", ' * count + "'h100*']\n",
        },
        CHECK,
    ),
    "a baseline": (
        1000,
        lambda count, salt: {"p.yaml": plan(salt), "b.json": accepted(count, salt)},
        [*CHECK, "--baseline", "b.json"],
    ),
    "a baseline of one file": (
        500,
        lambda count, salt: {
            "p.yaml": plan(salt),
            "b.json": json.dumps(
                {
                    "baseline": 1,
                    "memcheck": "0",
                    "findings": [{"path": "p.yaml", "plan": salt, "code": "MEM404", "pointer": f"/a/{n}"} for n in range(count)],
                }
            ),
        },
        [*CHECK, "--baseline", "b.json"],
    ),
    "a baseline of many findings": (
        100,
        one_file(lambda count, salt: training(salt, f"options: {{{each(count, 'o{0}: yes', ', ')}}}")),
        ["baseline", "write", "p.yaml", "--baseline", "b.json"],
    ),
    "files": (40, files(plan), TREE),
    "files that fail": (40, files(lambda name: FAILS.format(name=name)), TREE),
    "files of other tools": (200, files(lambda name: f"name: {name}\njobs: {{}}\n", {"p.yaml": plan("x")}), TREE),
    "files in dot folders": (
        200,
        lambda count, salt: {"p.yaml": plan(salt), **{f".d{n}/p.yaml": plan(salt) for n in range(count)}},
        TREE,
    ),
    "files that lack the mark": (
        200,
        files(lambda name: plan(name).replace("memcheck: 1\n", ""), {"p.yaml": plan("x")}),
        TREE,
    ),
    "files over one configuration each": (
        30,
        lambda count, salt: {
            **{f"d{n}/p.yaml": plan(salt) for n in range(count)},
            **{f"d{n}/memcheck.toml": 'fail-above = "90%"\n' for n in range(count)},
        },
        TREE,
    ),
    "files of one script": (
        20,
        files(
            lambda name: SOURCED.format(name=name, kind="megatron", file="../run.sh"),
            {"run.sh": "# a line\n" * 2000 + LAUNCH + "\n", ".git/HEAD": ""},
        ),
        TREE,
    ),
    "names in the command line": (40, files(plan), TREE),
    "two states": (
        15,
        lambda count, salt: {
            "p.yaml": documents(plan)(count, salt)["p.yaml"],
            "q.yaml": documents(lambda name: FAILS.format(name=name))(count, salt)["p.yaml"],
        },
        ["diff", "p.yaml", "q.yaml"],
    ),
    "a comparison": (10, documents(plan), ["compare", "p.yaml", "--gpu", "h100-80gb,h200"]),
    "a hook": (20, documents(plan), ["hook", "p.yaml"]),
    "kept verdicts": (30, documents(plan), ["check", "--jobs", "1", "p.yaml"]),
    "kept verdicts of files": (40, files(plan), ["check", "--jobs", "1", "."]),
}
FORMS = (
    "full",
    "concise",
    "brief",
    "json",
    "jsonl",
    "github",
    "sarif",
    "junit",
    "gitlab",
    "markdown",
    "html",
    "csv",
    "rdjson",
    "checkstyle",
)
REPORTS: dict[str, Kind] = {
    **{
        f"{form}: findings on a line": (
            150,
            one_file(lambda count, salt: training(salt, f"options: {{{each(count, 'o{0}: yes', ', ')}}}")),
            [*CHECK, "--format", form],
        )
        for form in FORMS
    },
    **{
        f"{form}: findings on lines": (
            150,
            one_file(lambda count, salt: plan(salt) + each(count, "k{0}: 1\n")),
            [*CHECK, "--format", form],
        )
        for form in FORMS
    },
    **{
        f"{form}: documents that fail": (
            15,
            documents(lambda name: FAILS.format(name=name)),
            [*CHECK, "--format", form],
        )
        for form in FORMS
    },
    **{
        f"{form}: files that fail": (20, files(lambda name: FAILS.format(name=name)), [*TREE, "--format", form])
        for form in FORMS
    },
    "verbose: findings": (
        100,
        one_file(lambda count, salt: plan(salt) + each(count, "k{0}: 1\n")),
        [*CHECK, "--verbose"],
    ),
    "statistics: findings": (
        150,
        one_file(lambda count, salt: plan(salt) + each(count, "k{0}: 1\n")),
        [*CHECK, "--statistics"],
    ),
}
