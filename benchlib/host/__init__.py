"""The machine: processes, the kernel's counters, files, the journal of changes, the lock."""
