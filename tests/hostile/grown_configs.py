"""Configs of frameworks, and files that plans name, in any size; other commands than ``check``."""

from __future__ import annotations

import json

from tests.hostile.grown import (
    CHECK,
    FAILS,
    GPU,
    LAUNCH,
    SOURCED,
    TREE,
    Kind,
    accepted,
    documents,
    each,
    files,
    one_file,
    plan,
    sourced,
    training,
)

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
    "yaml: keys": (
        300,
        sourced("axolotl", "a.yaml", lambda count, salt: AXOLOTL + each(count, f"k{{0}}: {salt}\n")),
        CHECK,
    ),
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
    "yaml: a list": (
        500,
        sourced("axolotl", "a.yaml", lambda count, salt: f"{AXOLOTL}z{salt}: [{'a, ' * count}]\n"),
        CHECK,
    ),
    "yaml: frozen parts": (
        200,
        sourced(
            "axolotl",
            "a.yaml",
            lambda count, salt: (
                f"{AXOLOTL}# {salt}\nunfrozen_parameters:\n" + each(count, "  - model.layers.{0}.mlp\n")
            ),
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
            lambda count, salt: (
                f"{RECIPE}a0: x{salt}\n"
                + "".join(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 40))
                + each(count, "b{0}: ${a39}\n")
            ),
        ),
        CHECK,
    ),
    "json: keys": (
        300,
        sourced(
            "deepspeed",
            "ds.json",
            lambda count, salt: json.dumps(
                {"zero_optimization": {"stage": 3}, **{f"k{n}": salt for n in range(count)}}
            ),
        ),
        CHECK,
    ),
    "json: a long key of many": (
        100,
        sourced(
            "deepspeed",
            "ds.json",
            lambda count, salt: json.dumps(
                {"zero_optimization": {"stage": 3}, salt + "k" * 5000: {f"k{n}": 1 for n in range(count)}}
            ),
        ),
        CHECK,
    ),
    "json: levels": (
        200,
        sourced(
            "deepspeed",
            "ds.json",
            lambda count, salt: (
                '{"zero_optimization": {"stage": 3}, "a":' + '{"a":' * count + f'"{salt}"' + "}" * count + "}"
            ),
        ),
        CHECK,
    ),
    "json: a long text": (
        20_000,
        sourced(
            "deepspeed",
            "ds.json",
            lambda count, salt: json.dumps({"zero_optimization": {"stage": 3}, "x": salt + "\\" * count}),
        ),
        CHECK,
    ),
    "toml: keys": (
        300,
        sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'k{{0}} = "{salt}"\n')),
        CHECK,
    ),
    "toml: tables": (
        300,
        sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'[t{{0}}]\nk = "{salt}"\n')),
        CHECK,
    ),
    "toml: tables of a list": (
        300,
        sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'[[t]]\nk{{0}} = "{salt}"\n')),
        CHECK,
    ),
    "toml: a list": (
        500,
        sourced("torchtitan", "t.toml", lambda count, salt: f'{TITAN}x = ["{salt}", ' + "'1', " * count + "]\n"),
        CHECK,
    ),
    "toml: an inline table": (
        300,
        sourced(
            "torchtitan",
            "t.toml",
            lambda count, salt: f'{TITAN}x = {{s = "{salt}", ' + each(count, "k{0} = 1", ", ") + "}\n",
        ),
        CHECK,
    ),
    "toml: dotted keys": (
        300,
        sourced("torchtitan", "t.toml", lambda count, salt: TITAN + each(count, f'a.b.k{{0}} = "{salt}"\n')),
        CHECK,
    ),
    "toml: a long text": (
        20_000,
        sourced(
            "torchtitan",
            "t.toml",
            lambda count, salt: f'{TITAN}x = """{salt}' + "a.b = 1 [x] " * (count // 12) + '"""\n',
        ),
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
                    "findings": [
                        {"path": "p.yaml", "plan": salt, "code": "MEM404", "pointer": f"/a/{n}"} for n in range(count)
                    ],
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
        20,  # up to here each plan is compared with each
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
