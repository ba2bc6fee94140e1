"""Frequencies of cores, on kernels made up of plain files; cores are tried in trials on real servers."""

from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host.journal import Scope
from benchlib.levers.cpu import CpuParts

CPU = "sys/devices/system/cpu"


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / CPU / name).parent.mkdir(parents=True, exist_ok=True)
        (root / CPU / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("turbo", "on", "off"), [("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")]
)
def test_governor_and_turbo_are_set_and_restored(
    turbo: str, on: str, off: str, kernel_root: Path, scope: Scope
) -> None:
    policies = [f"cpufreq/policy{number}/scaling_governor" for number in (0, 1)]
    offered = {f"cpufreq/policy{n}/scaling_available_governors": "performance powersave" for n in (0, 1)}
    lay(kernel_root, {**dict.fromkeys(policies, "powersave"), **offered, turbo: on})
    cpu = CpuParts(governor="performance", turbo=False)
    cpu.check()
    for tunable, value in cpu.tunables():
        tunable.apply(value, scope)
    # a plain file keeps the end of a longer text
    assert [(kernel_root / CPU / file).read_text()[:11] for file in policies] == ["performance"] * 2
    assert (kernel_root / CPU / turbo).read_text()[0] == off
    scope.undo()
    assert [(kernel_root / CPU / file).read_text()[:9] for file in policies] == ["powersave"] * 2
    assert (kernel_root / CPU / turbo).read_text()[0] == on
    with pytest.raises(PreflightError, match="governor 'fast' is not one of performance, powersave"):
        CpuParts(governor="fast").check()


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        (CpuParts(governor="performance"), "no frequency control here, .*: leave 'governor' out"),
        (CpuParts(turbo=False), "no frequency control here, .*: leave 'turbo' out"),
        (CpuParts(load="0,4095"), "'load' names core 4095, this machine has 0"),
    ],
    ids=["governor", "turbo", "core"],
)
def test_a_machine_without_it_refuses(cpu: CpuParts, why: str, kernel_root: Path) -> None:
    with pytest.raises(PreflightError, match=why):
        cpu.check()
