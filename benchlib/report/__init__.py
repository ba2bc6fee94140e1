"""Notebooks executed, pages rendered, the site put together."""
