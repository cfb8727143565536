"""Plans of every kind in any size, and every report about many findings."""

from __future__ import annotations

import json

from tests.hostile.grown import (
    CHECK,
    FAILS,
    HEAD,
    LAUNCH,
    LLAMA,
    SOURCED,
    TREE,
    Kind,
    documents,
    each,
    files,
    one_file,
    plan,
    training,
)

PLANS: dict[str, Kind] = {
    "documents that pass": (30, documents(plan), CHECK),
    "documents that fail": (20, documents(lambda name: FAILS.format(name=name)), CHECK),
    "documents that differ and fail": (
        4,
        documents(
            lambda name: FAILS.format(name=name).replace(
                "4096", str(1000 + sum(map(ord, name)) + 64 * int(name.split("-")[1]))
            )
        ),
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
            lambda count, salt: (
                f"{HEAD.format(name=salt, model='gpt2')}training:\n  micro_batch_size: 1\n"
                "  sequence_length: 128\n  options:\n" + each(count, "    k{0}: 1\n")
            )
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
            lambda count, salt: (
                plan(salt) + each(count, "a{0}: &a{0} {k{0}: 1}\n") + f"z: {{<<: [{each(count, '*a{0}', ', ')}]}}\n"
            )
        ),
        CHECK,
    ),
    "merges of merges": (
        60,
        one_file(
            lambda count, salt: (
                plan(salt)
                + "a0: &a0 {k0: 1}\n"
                + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}\n" for n in range(1, 60))
                + each(count, "b{0}: {<<: *a9}\n")
            )
        ),
        CHECK,
    ),
    "duplicate keys": (300, one_file(lambda count, salt: plan(salt) + "kk: 1\n" * count), CHECK),
    "comments": (2000, one_file(lambda count, salt: plan(salt) + each(count, "# note {0}\n")), CHECK),
    "comments that suppress": (
        200,
        one_file(
            lambda count, salt: (
                plan(salt) + each(count, "k{0}: 1  # memcheck: ignore[MEM011] a reason of so many letters\n")
            )
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
    "a long name of marks": (
        20_000,
        one_file(lambda count, salt: plan(f"'{salt}" + "*_[<" * (count // 4) + "'")),
        CHECK,
    ),
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
    "escapes": (
        3000,
        one_file(lambda count, salt: plan(salt) + 'description: "' + "\\u001b[31m" * count + '"\n'),
        CHECK,
    ),
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
        80,
        one_file(
            lambda count, salt: (
                HEAD.format(name=salt, model="gpt2")
                + "training:\n  micro_batch_size: 1\n  sequence_length: 128\n  options:\n"
                + each(count, "    trap_{0}: yes\n    plain_{0}: 1\n")
            )
        ),
        ["check", "--fix", "p.yaml"],
    ),
    "traps of documents to fix": (
        12,
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
            "p.yaml": "---\n".join(SOURCED.format(name=salt, kind="megatron", file=f"run{n}.sh") for n in range(count)),
            **{f"run{n}.sh": f"# {salt}\n{LAUNCH}\n" for n in range(count)},
        },
        CHECK,
    ),
    "plans of one config of many keys": (
        8,
        lambda count, salt: {
            **documents(
                lambda name: (
                    SOURCED.format(name=name, kind="deepspeed", file="ds.json")
                    + "model: gpt2\ntraining: {micro_batch_size: 1, sequence_length: 128}\n"
                )
            )(count, salt),
            "ds.json": json.dumps({"zero_optimization": {"stage": 3}, **{f"k{n}": salt for n in range(50 * count)}}),
        },
        CHECK,
    ),
}

FORMS = {
    "text": ("full", "concise", "brief", "markdown", "csv", "github"),
    "data": ("json", "jsonl", "sarif", "junit", "gitlab", "rdjson", "checkstyle"),
    "html": ("html",),
}
"""Formats that one run writes together: what is written is judged once."""
FOUND: dict[str, Kind] = {
    "findings on a line": (
        80,
        one_file(lambda count, salt: training(salt, f"options: {{{each(count, 'o{0}: yes', ', ')}}}")),
        CHECK,
    ),
    "findings on lines": (80, one_file(lambda count, salt: plan(salt) + each(count, "k{0}: 1\n")), CHECK),
    "documents that fail": (10, documents(lambda name: FAILS.format(name=name)), CHECK),
    "files that fail": (10, files(lambda name: FAILS.format(name=name)), TREE),
}
REPORTS: dict[str, Kind] = {
    **{
        f"{group}: {found}": (count, make, [*command, *(f"--format={form}={form}.out" for form in forms)])
        for group, forms in FORMS.items()
        for found, (count, make, command) in FOUND.items()
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
