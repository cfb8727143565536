"""Answers a page, a local server or an editor: files in memory, one request at a time, answers in steps."""
