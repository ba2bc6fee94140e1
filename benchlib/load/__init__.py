"""Load tools: command lines, output and logs."""
