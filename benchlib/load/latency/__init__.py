"""Latencies of single transactions: pgbench's log, kept as compressed Parquet, and the figures in it.

A log may hold gigabytes. It is read in spans of whole lines, on all processors at once, and costs
little more than pyarrow's CSV reader. All quantiles are exact: latencies are whole microseconds, so those
of a trial need only be counted, and those of a window only be sorted. Memory: about 250 MB, and four
bytes per transaction.
"""

from benchlib.load.latency.figures import EDGES_US, QUANTILES, Latency
from benchlib.load.latency.kept import SCHEMA, keep_log, read_latency, read_log

__all__ = ["EDGES_US", "QUANTILES", "SCHEMA", "Latency", "keep_log", "read_latency", "read_log"]
