"""``memcheck list``: what the catalogs hold.

Plain tables for ``list``: aligned columns, the last one wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from memcheck.catalog.names import find_gpu, find_model, gpu_names, model_names
from memcheck.cli.parameters import COLOR
from memcheck.cli.write import has_width, screen_of, write_stdout
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, gib
from memcheck.errors import UsageError, closest
from memcheck.families.registry import FAMILIES, WRAPPERS, read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.framework import DEFAULT_OPTIMIZER
from memcheck.memory.unmodelled import unpriced
from memcheck.record import Record
from memcheck.report import table as writer
from memcheck.report.story.blocks import NO_ROOM, Table
from memcheck.rules.registry import RULES


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    screen: Screen,
    right: frozenset[int],
    instead: str = "take --format json",
) -> str:
    """A head line and one line per row. Columns in ``right`` are aligned there; the last column takes what is left.

    On a narrow screen the columns before the last give way, from the right; the first, a name, stays. In a file or a
    pipe each row is one line, which ``grep`` finds whole. ``instead``: where else the dropped columns are.
    """
    note = NO_ROOM._replace(text=NO_ROOM.text.replace("take --format json", instead), tone="dim")
    found = Table(
        caption="",
        heads=tuple(heads),
        rows=tuple(map(tuple, rows)),
        right=tuple(right),
        optional=tuple(range(len(heads) - 2, 0, -1)),
        notes=(note,),
        flow="wrap",
    )
    return "\n".join(writer.lines(found, screen) if has_width(sys.stdout) else writer.unlimited(found)) + "\n"


class Listing(Record):
    """One catalog as rows for people and records for programs."""

    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    records: list[dict[str, object]]
    right: frozenset[int] = frozenset()


def models() -> Listing:
    """Every model of the catalog."""
    found = [find_model(name) for name in model_names()]
    return Listing(
        heads=("name", "parameters", "type", "Hugging Face id"),
        rows=[(m.name, f"{m.parameters:,}", str(m.config.get("model_type", "")), m.id) for m in found],
        records=[
            {"name": m.name, "id": m.id, "parameters": m.parameters, "model_type": m.config.get("model_type")}
            for m in found
        ],
        right=frozenset({1}),
    )


def gpus() -> Listing:
    """Every GPU of the catalog."""
    found = [find_gpu(name) for name in gpu_names()]
    return Listing(
        heads=("name", "GiB", "arch", "bf16 TFLOPS", "fp8 TFLOPS", "HBM GB/s", "NVLink GB/s", "GPUs per node"),
        rows=[
            (
                g.name,
                gib(g.memory_bytes),
                g.arch or "",
                _rate(g.bf16_tflops),
                _rate(g.fp8_tflops),
                _rate(g.hbm_gbs),
                _rate(g.nvlink_gbs),
                _rate(g.gpus_per_node),
            )
            for g in found
        ],
        records=[{key: value for key, value in g._asdict().items() if key != "from_catalog"} for g in found],
        right=frozenset({1, 3, 4, 5, 6, 7}),
    )


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def rules() -> Listing:
    """Every rule."""
    return Listing(
        ("code", "name", "severity", "profile", "precision", "summary"),
        [(r.code, r.name, r.severity, r.profile, r.precision, r.summary) for r in RULES],
        [
            {
                "code": r.code,
                "name": r.name,
                "severity": r.severity,
                "profile": r.profile,
                "precision": r.precision,
                "opt_in": r.opt_in,
                "summary": r.summary,
            }
            for r in RULES
        ],
    )


def frameworks() -> Listing:
    """Every training framework."""
    found = FRAMEWORKS.values()
    return Listing(
        ("name", "ZeRO stages", "default precision", "what runs it"),
        [(f.name, ", ".join(map(str, f.parallelism.zero_stages)), f.precisions.default, f.title) for f in found],
        [
            {
                "name": f.name,
                "title": f.title,
                "zero_stages": f.parallelism.zero_stages,
                "parallelisms": f.parallelism.degrees,
                "default_precision": f.precisions.default,
                "default_optimizer": DEFAULT_OPTIMIZER,
                "options": sorted(f.options),
            }
            for f in found
        ],
    )


def architectures() -> Listing:
    """Every ``model_type`` that is read, with the frameworks that build it and a model of the catalog."""
    models: dict[str, list[str]] = {kind: [] for kind in (*FAMILIES, *WRAPPERS)}
    for name in model_names():
        models.setdefault(str(find_model(name).config["model_type"]), []).append(name)
    rows = [(kind, models[kind], builders(kind, models[kind])) for kind in sorted(models)]
    return Listing(
        ("model_type", "models", "for example", "built by"),
        [(kind, str(len(names)), next(iter(names), ""), ", ".join(by) or OPEN) for kind, names, by in rows],
        [{"name": kind, "models": names, "frameworks": by} for kind, names, by in rows],
        right=frozenset({1}),
    )


OPEN = "depends on its config.json"
"""What is said of models with a tower where the catalog has none of that type, which does not tell their parts."""


def builders(kind: str, models: list[str]) -> list[str]:
    """The frameworks that build a ``model_type``: of one with a tower, those that price a model of it as a whole."""
    if kind in FAMILIES:
        return [each.name for each in FRAMEWORKS.values() if kind in each.families.names]
    found = [read_architecture(find_model(name).config) for name in models[:1]]
    return [
        each.name
        for each in FRAMEWORKS.values()
        for model in found
        if model.model_type in each.families.names and not unpriced(each.families, model)
    ]


CATALOGS: dict[str, Callable[[], Listing]] = {
    "models": models,
    "gpus": gpus,
    "rules": rules,
    "frameworks": frameworks,
    "architectures": architectures,
}
OTHER_WORDS = {"families": "architectures", "archs": "architectures", "model-types": "architectures", "cards": "gpus"}
"""What people also type for a catalog."""


class _Catalog(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.2
    """A catalog's name, in the singular or plural."""

    name = "catalog"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = str(value).lower().replace("_", "-")
        found = OTHER_WORDS.get(word, word)
        if found + "s" in CATALOGS:
            found += "s"
        if found not in CATALOGS:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, CATALOGS))}.", param, ctx)
        return found

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in CATALOGS if name.startswith(incomplete)]


def matching(listing: Listing, words: tuple[str, ...]) -> Listing:
    """The rows in which every word stands somewhere, in any case. Blanks, hyphens and underscores are alike."""
    wanted = [_plain(word) for word in words]
    kept = [n for n, row in enumerate(listing.rows) if all(word in _plain(" ".join(row)) for word in wanted)]
    return listing._replace(rows=[listing.rows[n] for n in kept], records=[listing.records[n] for n in kept])


def _plain(text: str) -> str:
    return text.lower().replace("-", " ").replace("_", " ")


@click.command("list")
@click.argument("catalog", type=_Catalog())
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--format", "form", type=click.Choice(["full", "json"]), default="full", help="A table or JSON records.")
@COLOR
def command(catalog: str, words: tuple[str, ...], form: str, color: str) -> int:
    """List the models, gpus, rules, frameworks or architectures that memcheck knows, or those with a WORD in them."""
    listing = CATALOGS[catalog]()
    found = matching(listing, words)
    if words and not found.rows:
        close = closest(" ".join(words).lower(), [row[0] for row in listing.rows], 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"`memcheck list {catalog}` shows all"
        raise UsageError(f"none of the {len(listing.rows)} {catalog} has {' and '.join(map(repr, words))} in it", hint)
    if form == "json":
        write_stdout(dumps(found.records, indent=1) + "\n")
    else:
        write_stdout(table(found.heads, found.rows, screen_of(sys.stdout, color), found.right))
    return 0
