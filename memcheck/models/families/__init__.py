"""Readers of configurations, one module per family; :mod:`memcheck.families.registry` says which reads which."""
