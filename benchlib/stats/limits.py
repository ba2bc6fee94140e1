"""Limits of comparisons, by code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

LEAST_BLOCKS = 3
BY_HOST = "differs by host"
"""The verdict if effects differ between hosts; their average is not reported."""

ANSWER, EXPLORATORY, CONTROL = "answer", "exploratory", "control"
"""The families of comparisons; each has its own error rate."""

STANDS_OUT = "stands out"
"""The verdict on a cell of a survey that fresh blocks must confirm."""


class Sentence(NamedTuple):
    """The words of a code; lower ``weight`` matters more."""

    text: str
    why: str
    do: str
    weight: int = 5


@dataclass(frozen=True)
class Concern:
    """A limit of a comparison, or of the study; a grave one invalidates verdicts.

    ``others``: further such levels.
    """

    code: str
    value: str = ""
    grave: bool = False
    level: str | None = None
    others: int = 0

    @property
    def text(self) -> str:
        """Return the code's sentence."""
        text = SENTENCES[self.code].text.format(
            level=f"“{self.level}”" if self.level else "the study", value=self.value
        )
        text = text[:1].upper() + text[1:].replace("“…”", "…").replace("….", "…")
        more = f" {self.others} more level{'s have' if self.others > 1 else ' has'} this limit too."
        return text + more * (self.others > 0)

    @property
    def order(self) -> tuple[bool, int]:
        """Return the sort key: worst first."""
        return not self.grave, SENTENCES[self.code].weight

    def record(self) -> dict[str, Any]:
        """Return ``code, level, value, text, grave``."""
        return {name: getattr(self, name) for name in ("code", "level", "value", "text", "grave")}


_NOISE = "Noise between equal servers sets the smallest change that can be shown."
_LOST = "A trial that is missing is not missing at random: what failed may be what was slow."
_AGAIN = "Run the same command again, with retry_failed or more blocks."

SENTENCES: dict[str, Sentence] = {
    "doubt": Sentence("{level} cannot be judged: {value}.", "The trials do not measure what they should.", "Remove the cause and run the study again.", 1),
    # --- trials ---
    "failed_trials": Sentence("Trials that failed are left out: {value}.", _LOST, "Read the error, fix it, and run with retry_failed.", 2),
    "missing_values": Sentence("Trials without a value are left out: {value}.", _LOST, "Fill the column, or leave the rows out.", 3),
    "no_variation": Sentence(
        "The trials repeat each other exactly: there is no noise to judge by.",
        "Measured values always differ a little; equal values were copied or rounded.",
        "Give the values as they were measured.", 1,
    ),
    "outlier": Sentence("An outlier is shown and kept: {value}.", "One trial can move a mean.", "Look at its seconds and its log.", 8),
    "few_blocks": Sentence("A verdict takes at least 3 blocks (here: {value}).", "Noise cannot be estimated from fewer.", _AGAIN, 1),
    "few_trials": Sentence("{level} has too few usable trials for a verdict ({value}; at least 3 are needed).", "Noise cannot be estimated from fewer.", _AGAIN, 1),
    "incomplete_blocks": Sentence("Trials are absent from blocks: {value}.", "Blocks that lack a level compare fewer pairs.", _AGAIN, 6),
    "no_reference": Sentence("{level} has no verdict: the level that it is compared with has no trial.", "A change needs two sides.", _AGAIN, 1),
    "reading": Sentence("{value}.", "The file was read with these assumptions.", "Check that they hold.", 9),
    "trial_warning": Sentence("{level}: {value}.", "Something happened during trials that the numbers do not show.", "Read the trial's log.", 6),
    # --- controls, drift, hosts ---
    "no_control": Sentence("There is no A/A control.", _NOISE, "Set controls to 1 or more.", 6),
    "control_elsewhere": Sentence("The A/A control ({value}) has the workload of the baseline only.", _NOISE, "Nothing, as long as blocks are enough.", 8),
    "control_differs": Sentence(
        "The A/A control {level} differs from the baseline by {value}.",
        "Two equal servers should not differ. Other comparisons of this study may be wrong by as much.",
        "Find what differs between equal servers (disk layout, other load), and run a new study.", 1,
    ),
    "control_strays": Sentence(
        "The A/A control {level} differs by {value}, more than the margin.",
        "A change of that size can be noise between equal servers.", "Run more blocks.", 3,
    ),
    "host_drift": Sentence("The host drifted by {value} over the study; blocks cancel that.", "Speed changed for all levels alike.", "Nothing.", 8),
    "effect_drift": Sentence(
        "The effect of {level} drifted by {value} from the first block to the last.",
        "There is no single effect to report.", "Let the tables reach a steady size first, or rebuild the clusters more often.", 1,
    ),
    "clusters_stay": Sentence(
        "The clusters were built {value}: the verdicts hold for these clusters only.",
        "Where pages lie on disk differs from cluster to cluster.", "Rebuild them more often (rebuild_every).", 5,
    ),
    "survey": Sentence(
        "This is a survey; nothing in it is confirmed. {value}.",
        "One or two trials of a cell select what to measure, and show no difference.",
        "Run the same command with --confirm: fresh blocks, with a control, for the cells that stand out.", 1,
    ),
    "hosts": Sentence("{value}.", "A study on several hosts claims something about hosts such as these.", "Add hosts, or say that these alone matter (hosts: fixed).", 6),
    "host_by_level": Sentence(
        "The effect of {level} differs from host to host: {value}.", "An average over hosts that disagree describes none of them.",
        "Look at each host's own change.", 1,
    ),
    # --- the load ---
    "no_transactions": Sentence("{level} completed no transaction.", "There is nothing to compare.", "Read the load tool's output.", 1),
    "failed_transactions": Sentence("Transactions of {level} failed: {value}.", "Their work is missing from the throughput.", "Read the load tool's output.", 2),
    "retried_transactions": Sentence("Transactions of {level} were retried: {value}.", "Their latency includes the retries.", "Nothing, if conflicts are part of the question.", 6),
    "skipped_transactions": Sentence("Transactions of {level} were skipped: {value}.", "They came too late and no latency counts them.", "Lower the rate, or raise the limit.", 4),
    "rate_not_held": Sentence("{level} did not hold its rate: {value}.", "The latency then depends on how long a trial is.", "Set a lower rate, or more clients.", 2),
    "client_bound": Sentence("The load tool was the bottleneck of {level}: {value} of its CPU was busy.", "The server could have done more.", "Use more threads, or hosts that generate load.", 1),
    "no_steady_state": Sentence("{level} was not in a steady state. Its mean changes by {value}.", "The mean depends on when the trial starts.", "Warm up longer, or run longer trials.", 2),
    "too_short": Sentence("A steady state of {level} cannot be checked: {value}.", "The start of a trial may differ from the rest.", "Run longer trials, or more of them.", 7),
    "implausible_commit_rate": Sentence("{level} committed faster than the disk can flush: {value}.", "A commit may not have been on disk when it was acknowledged.", "Check the disk's write cache.", 1),
    # --- the machine ---
    "ceiling": Sentence("CPU was saturated by {level} ({value} busy).", "The change is what this machine allows.", "Use fewer clients, or more cores.", 4),
    "disk_cap": Sentence("The disk was limited by this study ({value}) and saturated by {level}.", "The limit sets the size of the change.", "Run without the limit, or with another.", 4),
    "shared_machine": Sentence("The load tool ran on the server's machine.", "Both compete for the same CPU.", "Set load: {from: [HOST]}, a host of a fleet.", 7),
    "replica_shares": Sentence("Replicas ran on the primary's machine.", "They compete for CPU and disk, and no network lies between.", "Place replicas on other hosts.", 5),
    "loop_device": Sentence("Files on this host's disk stood in for disks.", "A loop device adds a layer and shares the disk.", "Use devices of their own.", 7),
    "external_server": Sentence("One external server per level was measured.", "Another server of the same kind may differ.", "Repeat the study on a second server.", 5),
    "in_place": Sentence("Levels alternated within seconds on a server in use, with its own traffic.", "The traffic of a block cancels in the comparison; a peak within a trial does not.", "Run many short blocks.", 4),
    # --- the design ---
    "condition": Sentence("{level} did not meet a condition: {value}.", "The effect could not show under the conditions of the run.", "Change the size or the limits so that the condition holds.", 2),
    "durability": Sentence("{level} gives up durability: {value}.", "A crash can lose acknowledged commits.", "Decide whether the gain is worth it.", 2),
    "caveat": Sentence("{value}.", "The study states this limit itself.", "Read it before comparing with other machines.", 3),
    "slower_queries": Sentence(
        "Queries got slower at {level}, although the load as a whole did not: {value}.",
        "The queries that gain hide those that lose.", "Read the change of each query, and of its plan.", 2,
    ),
    "detectable": Sentence("A change of {level} below {value} is easily missed.", "Inconclusive does not mean equal.", "Run more blocks.", 3),
    "builds_differ": Sentence("The servers come from different builds: {value}.", "A compiler or an option can cost more than a version saves.", "Use servers of one builder.", 3),
    "extended": Sentence("The study was extended (blocks until then: {value}).", "Every unplanned look is one more chance of a false claim; the error rate was lowered for it.", "Use blocks = auto, which plans its looks.", 6),
    "stopped_early": Sentence("The study stopped after {value}.", "Studies that stop early overstate the effect on average.", "Run all blocks if the size of the effect matters.", 6),
}  # fmt: skip
