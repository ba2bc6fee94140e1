"""Plans: levels, loads, workloads, notebook parameters and the study they make. Pure."""
