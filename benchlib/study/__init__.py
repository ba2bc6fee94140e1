"""One study: its trials, environments, results and frames."""
