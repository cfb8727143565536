"""A replay of torch's caching allocator over the allocations of a step."""
