"""How long a step takes: a roofline model that ranks plans. Its seconds are a model, not a measurement.

Every rate is a datasheet's, a published measurement or NCCL's own cost model; nothing is fitted to a benchmark. What
the model says is compared with published tables in ``benchmarks/throughput.py``.
"""
