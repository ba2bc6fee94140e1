"""What a run does to the machine and reads from it: processes, the kernel's counters, the journal of changes, the lock."""
