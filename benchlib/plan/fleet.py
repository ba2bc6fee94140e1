"""A fleet: the hosts that ``fleet.yaml`` names, and which host runs which block. Pure.

A Dask cluster runs code for everyone who can connect, so TLS is required unless ``insecure: true``.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from benchlib.plan.level import HostName, Model, NotEmpty
from benchlib.plan.model import Plan

Role = Literal["server", "load", "follower"]
CERTIFICATES = ("ca.pem", "cert.pem", "key.pem")
"""The files in the folder that ``tls`` names: the CA, the fleet's certificate and its key."""


class FleetHost(Model):
    """A host: its roles, its PostgreSQL's address, its scratch folder, its SSH address."""

    roles: tuple[Role, ...] = ("server",)
    address: Annotated[str, AfterValidator(lambda text: str(ip_address(text)))] | None = None
    scratch: Annotated[str, Field(pattern="^/")] | None = None
    ssh: NotEmpty | None = None


class Fleet(Model):
    """A Dask cluster and its hosts by name.

    ``scheduler`` is the address of a running one (``tls://10.0.0.1:8786``). Without it, scheduler and workers
    are started over SSH with the options ``ssh`` (of ``asyncssh.connect``) and stopped at the end. A worker
    belongs to the host with its name or address. Without ``hosts`` every worker is a server.

    ``tls`` is a folder with :data:`CERTIFICATES`, at the same path on every SSH host. A lost host may return
    within ``back_within_s`` seconds; then the run ends with an error, after the blocks of the other hosts.
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
                raise ValueError("give the address of a 'scheduler', or 'ssh' for each of the 'hosts'")
        elif not self.insecure and not self.scheduler.startswith("tls://"):
            raise ValueError(
                f"scheduler {self.scheduler} is not a tls:// address: anyone who connects could run code on every host; "
                "run 'benchlib fleet certificates', or set 'insecure: true'"
            )
        if not self.insecure and not self.tls:
            raise ValueError("tls: give the folder that 'benchlib fleet certificates' created")
        if self.hosts and not self.with_role("server"):
            raise ValueError("none of the hosts has the role 'server'")
        return self

    def with_role(self, role: Role) -> list[str]:
        """Return the names of the hosts with a role, in the file's order."""
        return [name for name, host in self.hosts.items() if role in host.roles]


def pinned(blocks: int, levels: int, hosts: Sequence[str], looks: Sequence[int] = ()) -> Mapping[int, str]:
    """Return the host of each block (counted from 1); it depends on the plan alone.

    Each host runs whole groups of balanced blocks; the remaining blocks are assigned one by one.
    """
    in_groups = 0 if looks else blocks // (levels * len(hosts)) * levels * len(hosts)
    whole = {block: hosts[(block - 1) // levels % len(hosts)] for block in range(1, in_groups + 1)}
    return whole | {block: hosts[(block - 1) % len(hosts)] for block in range(in_groups + 1, blocks + 1)}


def elsewhere_of(plan: Plan) -> list[tuple[Role, str]]:
    """Return the hosts that generate load or run replicas for a plan, with their roles."""
    uses = list[tuple[Role, str]]()
    for name in plan.factor.levels:
        uses += [("load", host) for host in plan.level_load(name).generators]
        uses += [("follower", host) for host in plan.level(name).part("replication").get("on") or ()]
    return uses
