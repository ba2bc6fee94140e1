"""Frames and verdicts become figures; nothing here reads or writes a file."""
