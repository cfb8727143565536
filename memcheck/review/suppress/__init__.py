"""``# memcheck: ignore[CODE] reason``: comments that accept a finding where it stands.

Imported only where one is written.
"""
