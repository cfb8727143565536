"""vLLM: defaults and behaviours by version, KV cache groups, weights of a rank, uncertain terms, and the verdict."""
