"""A serving engine's answer as JSON."""

from __future__ import annotations

from memcheck.job.engines.types import CacheGroup, EngineAnswer, Term


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
