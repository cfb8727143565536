"""Vision towers as transformers writes them: one module a kind, with the names of :mod:`memcheck.frameworks.towers`.

Layers are blocks like others, with an attention of their own (:mod:`.attention`).
"""
