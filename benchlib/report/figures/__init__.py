"""Frames and verdicts become figures; nothing here reads or writes a file, but for the style of all charts."""
