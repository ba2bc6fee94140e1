"""Load tools: how each is called, what it prints, and the logs that it leaves."""
