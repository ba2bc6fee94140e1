"""Load tools."""
