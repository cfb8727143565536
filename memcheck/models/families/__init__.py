"""Readers of configurations, one module per family; :mod:`memcheck.models.registry` says which reads which."""
