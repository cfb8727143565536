"""Readers of ``vision_config``, one file a kind of tower. Imported when a configuration has one."""
