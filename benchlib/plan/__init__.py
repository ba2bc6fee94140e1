"""What is asked: a level, a load, a workload, a notebook's parameters, and the study that they make. Pure."""
