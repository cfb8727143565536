"""Peaks that projects publish for jobs whose config they ship, predicted from that config alone.

    python -m benchmarks.published [--write] [REPOSITORY=CLONE...]

``data/published.json`` has a row for each: the figure as printed, the config with its repository and commit, the
command or the overrides that are published with it, and the plan that ``memcheck import`` made of them. Plans of a
repository whose clone is named are made anew. ``--write`` writes that file and ``benchmarks/published.md``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from benchmarks.cases import HERE, Case, load
from benchmarks.score import Row, score
from memcheck.configs.edits import edit_toml
from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting
from memcheck.edge.libyaml import yaml
from memcheck.plan.text import split_lines
from memcheck.plan.value_edits import apply_edits

FILE = os.path.join(HERE, "data", "published.json")
PAGE = os.path.join(HERE, "published.md")
UNITS = {"GiB": 2**30, "GB": 10**9}


def rows() -> list[dict[str, Any]]:
    """Every published figure."""
    found: list[dict[str, Any]] = load("published.json")["rows"]
    return found


def imported(row: Mapping[str, Any], clone: str) -> tuple[str, str]:
    """The plan that a row's config becomes, and why there is none; one of them is empty."""
    git = shutil.which("git") or "git"
    command = [git, "-C", clone, "show", f"{row['commit']}:{row['config']}"]
    found = subprocess.run(command, capture_output=True, check=True, text=True)
    stated = {f"hardware.{key}": ReadSetting(value, "published") for key, value in row["hardware"].items()}
    stated |= {key: ReadSetting(value, "printed by the run") for key, value in row.get("stated", {}).items()}
    name = os.path.basename(row["config"])
    with tempfile.TemporaryDirectory() as folder:
        path, text = os.path.join(folder, name), found.stdout
        if "command" in row:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            path, text = os.path.join(folder, "run.sh"), f"{row['command']}\n"
        elif "overrides" in row:
            text = apply_edits(split_lines(text), edit_toml(path, text, row["overrides"]))
        made = import_config(path, text.encode(), stated)
    if made.problems:
        return "", made.problems[0].message
    text = made.text.replace(f"{folder}{os.sep}", "")
    if "memory_gib" in row:  # as the run printed it: the catalog's is what a driver leaves at least
        name = row["hardware"]["gpu"]
        text = text.replace(f"gpu: {name} ", f"gpu: {{name: {name}, memory_gib: {row['memory_gib']}}} ", 1)
    return text, ""


def scored(row: Mapping[str, Any]) -> Row | None:
    """A row's prediction; None without a plan."""
    if not row["plan"]:
        return None
    amount, unit = row["published"].split()
    truth = round(float(amount) * UNITS[unit])
    found = score(Case(row["id"], "published", yaml.safe_load(row["plan"]), truth, row["metric"], row["source"]))
    return found if isinstance(found, Row) else None


def page(found: Iterable[tuple[Mapping[str, Any], Row | None]]) -> str:
    """The table."""
    listed = list(found)
    inside = sum(priced is not None and priced.inside for _, priced in listed)
    lines = [
        "# Published peaks, from the config itself",
        "",
        "<!-- Written by python -m benchmarks.published --write -->",
        "",
        "Peaks that projects print for jobs whose config they ship. Each config is imported as it was at that commit,",
        f"with the command or the overrides beside the figure: {inside} of {len(listed)} lie inside the interval that",
        "is printed for what their counter counts. torchtitan's first twelve rows and six of torchtune's are among",
        "those that the width of the intervals was taken from ([RESULTS.md](RESULTS.md)); the others are not. GiB.",
        "",
        "| job | published | predicted | error | interval | |",
        "|---|---|---|---|---|---|",
    ]
    for row, priced in listed:
        lines.append(_line(row, priced))
    lines += ["", *_notebooks([(row, priced) for row, priced in listed if "reached" in row and priced is not None])]
    return "\n".join([*lines, "", "## Where they stand", "", *map(_source, (row for row, _ in listed)), ""])


def _notebooks(listed: list[tuple[Mapping[str, Any], Row]]) -> list[str]:
    """What the readings of unsloth's notebooks say together: those with rows as long as stated, and the others."""
    if not listed:
        return []
    reached = [(row, priced) for row, priced in listed if row["reached"]]
    own = [priced for row, priced in reached if not row["missed"]]
    above = [row["id"] for row, priced in listed if priced.case.truth_bytes > priced.interval_bytes[1]]
    errors = [median(abs(priced.error) for priced in found) for found in (own, [priced for _, priced in reached])]
    return [
        f"unsloth's notebooks print {len(listed)} of these peaks. {len(reached)} have rows as long as the plan says:",
        f"the median error is {errors[1]:.1%}. It is {errors[0]:.1%} where unsloth's own layers ran, on the checkpoint",
        f"that the notebook names ({len(own)}). Printed above the interval: {', '.join(above) or 'none'}.",
    ]


def _line(row: Mapping[str, Any], priced: Row | None) -> str:
    amount = f"{row['published']} {row['metric']}"
    if priced is None:
        return f"| {row['id']} | {amount} | | | | {row['missed']} |"
    low, high = (f"{end / 2**30:.2f}" for end in priced.interval_bytes)
    shown = f"{priced.predicted_bytes / 2**30:.2f} | {priced.error:+.1%} | {low} to {high}"
    return f"| {row['id']} | {amount} | {shown} | {'inside' if priced.inside else row['missed']} |"


def _source(row: Mapping[str, Any]) -> str:
    said = row.get("command") or " ".join(f"{key}={value}" for key, value in row.get("overrides", {}).items())
    beside = f", `{said}`" if said else ""
    return f"- {row['id']}: {row['source']}; {row['repository']} `{row['config']}@{row['commit']}`{beside}"


def main(arguments: list[str]) -> int:
    """Import, price, print, write."""
    clones = dict(each.split("=", 1) for each in arguments if "=" in each)
    found = rows()
    for row in found:
        if row["repository"] in clones:
            row["plan"], why = imported(row, clones[row["repository"]])
            if why:
                sys.stdout.write(f"{row['id']}: {why}\n")
    text = page([(row, scored(row)) for row in found])
    sys.stdout.write(text)
    if "--write" in arguments:
        with open(FILE, "w", encoding="utf-8") as file:
            file.write('{"rows": [\n' + ",\n".join(json.dumps(row) for row in found) + "\n]}\n")
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
