"""Plans: levels, loads, workloads, parameters, and the study that they make."""
