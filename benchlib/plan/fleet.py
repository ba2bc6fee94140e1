"""A fleet: the hosts that a study runs on, as ``fleet.yaml`` names them, and which of them runs which block. Pure.

A fleet is a Dask cluster with one worker a host, whoever started it. A Dask cluster runs code for whoever reaches its
ports, so one without TLS is refused unless the file says ``insecure: true``.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from benchlib.plan.level import HostName, Model, NotEmpty
from benchlib.plan.model import Plan

Role = Literal["server", "load", "follower"]
CERTIFICATES = ("ca.pem", "cert.pem", "key.pem")
"""The files in the folder that ``tls`` names: who is trusted, the certificate that everybody in the fleet shows, its key."""


class FleetHost(Model):
    """One host: what it may do, where its PostgreSQL is reached, and where its clusters lie.

    ``scratch`` stands for ``BENCHLIB_SCRATCH`` there. ``ssh`` is where a worker is started over SSH, such as ``db1`` or ``10.0.0.7``,
    for a fleet without a scheduler of its own.
    """

    roles: tuple[Role, ...] = ("server",)
    address: Annotated[str, AfterValidator(lambda text: str(ip_address(text)))] | None = None
    scratch: Annotated[str, Field(pattern="^/")] | None = None
    ssh: NotEmpty | None = None


class Fleet(Model):
    """The cluster, and its hosts by name.

    ``scheduler`` is the address of one that runs (``tls://10.0.0.1:8786``); without it scheduler and workers are started
    over SSH, with the options ``ssh`` (as of ``asyncssh.connect``), and end with the run. A worker is that of the host
    whose name or address it has (``dask worker --name db1``). Without ``hosts`` every worker is a server, by its own name.

    ``tls`` is a folder with :data:`CERTIFICATES`, at the same place on every host that is reached over SSH. A host that is
    lost may come back within ``back_within_s``; then its blocks go to the others.
    """

    scheduler: NotEmpty | None = None
    ssh: dict[str, Any] = {}
    tls: NotEmpty | None = None
    insecure: bool = False
    hosts: dict[HostName, FleetHost] = {}
    back_within_s: Annotated[float, Field(ge=0, le=86400)] = 300

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if not self.scheduler:
            if not self.hosts or any(host.ssh is None for host in self.hosts.values()):
                raise ValueError("name the address of a 'scheduler', or of each of the 'hosts' its 'ssh'")
        elif not self.insecure and not self.scheduler.startswith("tls://"):
            raise ValueError(
                f"the scheduler {self.scheduler} is no tls:// address: whoever reaches it can run code on every host; "
                "'benchlib fleet certificates' makes what TLS needs, and 'insecure: true' does without"
            )
        if not self.insecure and not self.tls:
            raise ValueError("tls: name the folder that 'benchlib fleet certificates' has made")
        if self.hosts and not self.with_role("server"):
            raise ValueError("none of the hosts has the role 'server'")
        return self

    def with_role(self, role: Role) -> list[str]:
        """The names of the hosts with a role, in the file's order."""
        return [name for name, host in self.hosts.items() if role in host.roles]


def pinned(blocks: int, levels: int, hosts: Sequence[str], looks: Sequence[int] = ()) -> Mapping[int, str]:
    """The host of each block, counted from 1, decided by the plan alone.

    The orders of as many blocks as there are levels are balanced together, so a host gets such groups whole, as far as
    every host gets as many; the rest is dealt block by block, and so are all blocks of a study that is looked at early.
    """
    in_groups = 0 if looks else blocks // (levels * len(hosts)) * levels * len(hosts)
    whole = {block: hosts[(block - 1) // levels % len(hosts)] for block in range(1, in_groups + 1)}
    return whole | {block: hosts[(block - 1) % len(hosts)] for block in range(in_groups + 1, blocks + 1)}


def elsewhere_of(plan: Plan) -> list[tuple[Role, str]]:
    """The hosts that levels of a plan have their load from, or their replicas on, with the role of each."""
    uses = list[tuple[Role, str]]()
    for name in plan.factor.levels:
        uses += [("load", host) for host in plan.level_load(name).generators]
        uses += [("follower", host) for host in plan.level(name).part("replication").get("on") or ()]
    return uses
