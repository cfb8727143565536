"""Writes what has its source elsewhere: registries, pages and list of rules, the plan format, output in the README.

``python -m docs.generate`` in the checkout writes it; ``python -m docs.generate --check`` fails when a page is stale.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from docs.live_schema import live_schema
from docs.memory_keys import memory_keys
from docs.page_palette import page_palette
from docs.plan_format import plan_format
from docs.report_schema import MODELS, schema_text
from docs.rule_pages import FAMILIES, family_page, rules_index
from docs.rule_registry import registries, rules
from docs.story_schema import story_schema
from memcheck.frameworks.registry import FOLDERS

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SHOWN = "<!-- Output of: "
"""What stands before the output of a command."""

GENERATED = "<!-- Written by `python -m docs.generate` from {source}: edit that and run it again. -->\n\n"
SHOWN_OUTPUT = re.compile(
    r"(<!-- Output of: (?P<command>.+?) -->\n```text\n)(?P<output>.*?)(?=^```$)", re.DOTALL | re.MULTILINE
)

ENUM = re.compile(r'("title": "Framework",\n.+\n.+\n *"enum": )\[.*\]')
"""The values of ``training.framework`` in the schema of plans."""


def examples_index() -> str:
    """The table of all examples, in the words of their descriptions."""
    lines = ["# Examples", ""]
    lines += ["Real plans, each with a comment on what it teaches; about half of them fail on purpose.", ""]
    lines += ["| file | plan | verdict |", "|---|---|---|"]
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for plan in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            lines.append(f"| [{path.name}]({path.name}) | {plan['name']} | {plan['description']} |")
    return "\n".join(lines) + "\n"


def with_outputs(page: str) -> str:
    """The page with every shown output replaced by what the command beside it prints now."""
    return SHOWN_OUTPUT.sub(lambda shown: shown[1] + output(shown["command"]), page)


def output(command: str) -> str:
    """What a memcheck command prints on a terminal of 100 columns without colours."""
    argv = [sys.executable, "-m", *shlex.split(command)]
    environ = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    return done.stdout


def schema_of_plans() -> str:
    """The schema of plans with the names of the registry as the values of ``training.framework``."""
    text = (ROOT / "schemas" / "plan.schema.json").read_text(encoding="utf-8")
    names = json.dumps(list(FOLDERS))
    return ENUM.sub(rf"\1{names}", text, count=1)


def written() -> dict[Path, str]:
    """The README and the pages as they are."""
    return {page: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}


def pages() -> dict[Path, str]:
    """Every page with generated text, as it should be."""
    schema = json.loads(schema_of_plans())
    from_rules = GENERATED.format(source="the rules' docstrings")
    every = list(rules().values())
    from_schema = GENERATED.format(source="schemas/plan.schema.json")
    texts = {
        **{page: with_outputs(text) for page, text in written().items() if SHOWN in text},
        DOCS / "reference" / "plan-format.md": from_schema + plan_format(schema),
        DOCS / "rules" / "README.md": from_rules + rules_index(every),
        ROOT / "examples" / "README.md": GENERATED.format(source="the plans' descriptions") + examples_index(),
    }
    texts[ROOT / "schemas" / "story.schema.json"] = story_schema()
    texts[ROOT / "schemas" / "live.schema.json"] = live_schema()
    texts[ROOT / "site" / "src" / "style" / "palette.css"] = page_palette()
    texts |= {ROOT / "schemas" / f"{name}.schema.json": schema_text(name) for name in MODELS}
    for family in FAMILIES:
        texts[DOCS / "rules" / f"{family}.md"] = from_rules + family_page(family, every)
    return texts


def stale(texts: dict[Path, str]) -> list[Path]:
    """Pages that differ from what would be written, are missing, or belong to no rule any more."""
    kept = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    pages_of_rules = (DOCS / "rules").glob("*.md") if DOCS / "rules" / "README.md" in texts else ()
    return sorted(kept + [path for path in pages_of_rules if path not in texts])


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name the stale ones."""
    modules = {**registries(), **memory_keys(), ROOT / "schemas" / "plan.schema.json": schema_of_plans()}
    if arguments != ["--check"]:  # first, because the commands whose output is shown run with them
        write(stale(modules), modules)
    texts = {**modules, **pages()}
    old = stale(texts)
    if arguments == ["--check"]:
        for path in old:
            print(f"{path.relative_to(ROOT)} is stale: run python -m docs.generate")
        return 1 if old else 0
    write(old, texts)
    return 0


def write(old: list[Path], texts: dict[Path, str]) -> None:
    """Write stale pages, and remove those that belong to nothing."""
    for path in old:
        if path in texts:
            path.parent.mkdir(exist_ok=True)
            path.write_text(texts[path], encoding="utf-8", newline="\n")
        else:
            path.unlink()
        print(f"{'wrote' if path in texts else 'removed'} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
