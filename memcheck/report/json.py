"""The report for programs: ``schemas/report.schema.json``, version 1. Fields may be added, never renamed or removed.

The JSON report in lines: one object per plan, per finding and per unreadable path, the summary last.

For logs, ``jq`` and databases. Objects have the fields of ``schemas/report.schema.json`` and a ``type``.

A serving engine's answer as JSON.
"""

from __future__ import annotations

from memcheck.accounts.estimate import COMPONENTS, Estimate, RankEstimate, TensorGroup
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.job.engines.types import CacheGroup, EngineAnswer, Term
from memcheck.memory.fit import UNCERTAIN, gpu_fit
from memcheck.plan.finding import Edit, Finding, Location, Remedy, Span
from memcheck.report.verdict import short_of_host
from memcheck.rules.result import BASELINE, COMMENT, SELECTION, PlanResult, Report


def engine_record(answer: EngineAnswer) -> dict[str, object]:
    """The answer with its groups and terms; lists have one entry for each pipeline rank."""
    settings, pool = answer.settings, answer.pool
    boots = pool is not None and answer.answer != "does_not_boot"
    return {
        "name": settings.name,
        "version": settings.version,
        "answer": answer.answer,
        "error": answer.refusal.words if answer.refusal is not None else None,
        "depends_on": list(answer.depends_on),
        "kv_bytes": max(0, answer.pool_bytes),
        "kv_interval_bytes": [max(0, count) for count in answer.pool_interval_bytes],
        "blocks": pool.blocks if boots and pool else 0,
        "tokens": pool.tokens if boots and pool else 0,
        "concurrency": round(pool.concurrency, 4) if boots and pool else 0.0,
        "max_model_len": pool.length if pool else settings.length or settings.longest,
        "longest": answer.longest,
        "request_bytes": answer.request_bytes,
        "groups": [group_record(group) for group in answer.groups if group.layers],
        "weights_bytes": [_bytes(terms, "weights") for terms in answer.ranks],
        "buffers_bytes": [_bytes(terms, "buffers") for terms in answer.ranks],
        "towers_bytes": [_bytes(terms, "towers") for terms in answer.ranks],
        "terms": [[term_record(term) for term in terms] for terms in answer.ranks],
        "share_needed": answer.share_needed,
        "demand_held": answer.demand_held,
        "enclosing": [list(pair) for pair in answer.enclosing],
        "defaults": {
            "gpu_memory_utilization": settings.share,
            "max_num_batched_tokens": settings.batched_tokens,
            "max_num_seqs": settings.sequences,
            "block_size": answer.block,
            "kv_cache": settings.kv_cache,
            "enforce_eager": settings.eager,
            "prefix_caching": settings.prefix_caching,
            "cudagraph_sizes": answer.captures.sizes,
            "largest_cudagraph": answer.captures.largest,
        },
    }


def group_record(group: CacheGroup) -> dict[str, object]:
    """One group as the engine names it: of mixed pages, all layers' together."""
    cache = group.cache
    pages = sum(each.page_bytes for each in group.caches) if group.mixed else cache.page_bytes
    kind = "UniformTypeKVCacheSpecs" if group.mixed else cache.kind
    return {"kind": kind, "layers": len(group.layers), "block": cache.block, "page_bytes": pages}


def term_record(term: Term) -> dict[str, object]:
    """One term with its interval and source."""
    return {
        "name": term.name,
        "bytes": term.expected_bytes,
        "low_bytes": term.low_bytes,
        "high_bytes": term.high_bytes,
        "source": term.source,
    }


def _bytes(terms: tuple[Term, ...], name: str) -> int:
    return next((term.expected_bytes for term in terms if term.name == name), 0)


def render(report: Report, screen: Screen | None = None) -> str:
    """The document of ``check``; the screen plays no part."""
    return dumps(document(report), indent=1) + "\n"


def render_estimates(report: Report) -> str:
    """The document of ``estimate``: findings only for plans that could not be estimated."""
    return dumps(document(report, diagnostics=False), indent=1) + "\n"


def document(report: Report, *, diagnostics: bool = True) -> dict[str, object]:
    """The whole report as plain data."""
    return {
        "report": 1,
        "memcheck": report.version,
        "summary": summary(report),
        "plans": [plan_record(plan, diagnostics=diagnostics or plan.estimate is None) for plan in report.plans],
        "unreadable": [{"path": item.path, "message": item.message} for item in report.unreadable],
    }


def summary(report: Report) -> dict[str, int]:
    """Plans by verdict, findings by severity, and those that are hidden by what hides them."""
    return {
        "plans": len(report.plans),
        "passed": report.passed,
        "accepted": report.accepted,
        "failed": report.failed,
        "uncertain": report.verdicts[UNCERTAIN],
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "infos": report.count("info"),
        "unchanged": report.unchanged,
        "suppressed": report.hidden(COMMENT),
        "baselined": report.hidden(BASELINE),
        "deselected": report.hidden(SELECTION),
    }


def plan_record(plan: PlanResult, *, diagnostics: bool) -> dict[str, object]:
    """One plan; ``estimate`` is null when there is none."""
    record: dict[str, object] = {
        "path": plan.path,
        "document": plan.document,
        "name": plan.name,
        "status": plan.status,
        "accepted": [{"code": each.finding.code, "by": each.by, "why": each.why} for each in plan.accepted],
        "model": plan.model,
        "gpu": plan.gpu,
        "gpus": plan.gpus,
        "framework": plan.framework,
        "estimate": None if plan.estimate is None else estimate_record(plan, plan.estimate),
    }
    if diagnostics:
        record["diagnostics"] = [diagnostic(plan, finding) for finding in plan.findings]
    return record


def estimate_record(plan: PlanResult, estimate: Estimate) -> dict[str, object]:
    """The numbers of one plan."""
    return {
        "allocated_bytes": estimate.allocated_bytes,
        "reserved_bytes": estimate.reserved_bytes,
        "device_bytes": estimate.device_bytes,
        "capacity_bytes": estimate.capacity_bytes,
        "utilization": round(estimate.utilization, 6),
        "verdict": plan.verdict,
        "longest_row": estimate.longest_row or None,
        "fits": {"gpu": gpu_fit(estimate, plan.fail_above), "host": not short_of_host(plan)},
        "interval_bytes": list(estimate.interval_bytes),
        "needed_bytes": estimate.needed_bytes,
        "needed_interval_bytes": list(estimate.needed_interval_bytes),
        "instant": estimate.instant,
        "operation": estimate.operation,
        "pipeline_rank": estimate.pipeline_rank,
        "components_bytes": {name: estimate.components_bytes.get(name, 0) for name in COMPONENTS},
        "cache_bytes": estimate.cache_bytes,
        "parameters": estimate.parameters,
        "trainable_parameters": estimate.trainable_parameters,
        "host_bytes_per_node": estimate.host_bytes_per_node,
        "host_capacity_bytes": plan.host_capacity_bytes,
        "host_components_bytes": dict(estimate.host_components),
        "host_instant": estimate.host_moment.name if estimate.host_moment else "",
        "host_instants_bytes": {moment.name: moment.bytes for moment in estimate.host_moments},
        "ranks": [rank_record(rank) for rank in estimate.ranks],
        "largest_tensors": [tensors(group) for group in estimate.largest],
        "rests_on": [
            {
                "key": each.key,
                "value": each.value,
                "other": each.other,
                "needed_bytes": each.needed_bytes,
                "utilization": round(each.utilization, 6),
            }
            for each in plan.rests_on
        ],
        "settled_by": plan.settled_by or None,
        "assumptions": [{"key": item.key, "value": item.value, "why": item.why} for item in plan.assumptions],
        **({} if estimate.engine is None else {"engine": engine_record(estimate.engine)}),
    }


def tensors(group: TensorGroup) -> dict[str, object]:
    """A group of equal live tensors as JSON."""
    return {
        "name": group.name,
        "shape": group.shape,
        "count": group.copies,
        "bytes": group.bytes,
        "component": group.component,
    }


def rank_record(rank: RankEstimate) -> dict[str, object]:
    """One pipeline rank; an instant that comes several times counts with its highest."""
    instants: dict[str, int] = {}
    for instant in rank.instants:
        instants[instant.name] = max(instant.allocated_bytes, instants.get(instant.name, 0))
    return {
        "pipeline_rank": rank.pipeline_rank,
        "allocated_bytes": rank.peak.allocated_bytes,
        "parameters": rank.parameters,
        "instants_bytes": instants,
    }


def diagnostic(plan: PlanResult, finding: Finding) -> dict[str, object]:
    """One finding of a plan."""
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        "help": finding.help,
        "location": location(finding.location),
        "pointer": finding.pointer,
        "related": [{"label": label, **location(where)} for label, where in finding.related],
        "fix": [edit(item) for item in finding.fix],
        "fixable": plan.fixable(finding),
        "remedies": [remedy(item) for item in finding.remedies],
    }


def location(where: Location) -> dict[str, object]:
    """A location as JSON: path, span, note. Lines and columns are 1-based; the end column is after the last one."""
    return {"path": where.path, **span(where.span), "note": where.note}


def span(where: Span) -> dict[str, object]:
    """Line and column of both ends."""
    return dict(where._asdict())


def remedy(item: Remedy) -> dict[str, object]:
    """A change and what it leads to."""
    return {
        "title": item.title,
        "set": item.set,
        "device_bytes": item.device_bytes,
        "utilization": round(item.utilization, 6),
        "interval_bytes": list(item.interval_bytes),
        "needed_bytes": item.needed_bytes,
        "needed_interval_bytes": list(item.needed_interval_bytes),
        "group": item.group,
        "role": item.role or None,
        "slowdown": None if item.slowdown is None else round(item.slowdown, 6),
        "safe": item.safe,
        "sure": item.sure,
        "host_bytes_per_node": item.host_bytes_per_node,
        "edits": [edit(each) for each in item.edits],
        "written": item.written,
        "elsewhere": [{"path": file.path, "edits": [edit(each) for each in file.edits]} for file in item.elsewhere],
    }


def edit(item: Edit) -> dict[str, object]:
    """Replace what is between start and end by the text."""
    where = item.span
    return {
        "start": {"line": where.line, "column": where.column},
        "end": {"line": where.end_line, "column": where.end_column},
        "text": item.text,
    }


def lines(report: Report, screen: Screen | None = None) -> str:
    """The lines; the screen plays no part."""
    return "".join(dumps(record) + "\n" for record in line_records(report))


def line_records(report: Report) -> list[dict[str, object]]:
    """Each plan, followed by its findings, which name it."""
    found: list[dict[str, object]] = []
    for plan in report.plans:
        found.append({"type": "plan", **plan_record(plan, diagnostics=False)})
        owner = {"path": plan.path, "document": plan.document, "plan": plan.name}
        found += [{"type": "diagnostic", **owner, **diagnostic(plan, finding)} for finding in plan.findings]
    found += [{"type": "unreadable", "path": item.path, "message": item.message} for item in report.unreadable]
    found.append({"type": "summary", "report": 1, "memcheck": report.version, **summary(report)})
    return found
