"""Processes, kernel counters, files, the journal of changes, the lock."""
