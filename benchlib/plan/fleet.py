"""A fleet: the hosts in ``fleet.yaml``, and the blocks of each.

Dask runs code for everyone who can connect, so TLS is required unless ``insecure: true``.
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
    """A host; ``address`` is its PostgreSQL's."""

    roles: tuple[Role, ...] = ("server",)
    address: Annotated[str, AfterValidator(lambda text: str(ip_address(text)))] | None = None
    scratch: Annotated[str, Field(pattern="^/")] | None = None
    ssh: NotEmpty | None = None


class Fleet(Model):
    """A Dask cluster and its hosts by name. Without ``hosts`` every worker is a server.

    - ``scheduler``: a running one (``tls://10.0.0.1:8786``). Without it, SSH starts and stops scheduler and workers.
    - ``ssh``: options of ``asyncssh.connect``.
    - ``tls``: the folder of :data:`CERTIFICATES`, at the same path on every SSH host.
    - ``back_within_s``: the time in which a lost host may return.
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
        """Return the names of the hosts with a role."""
        return [name for name, host in self.hosts.items() if role in host.roles]


def pinned(blocks: int, levels: int, hosts: Sequence[str], looks: Sequence[int] = ()) -> Mapping[int, str]:
    """Return the host of each block (from 1), by the plan alone.

    Each host runs whole groups of balanced blocks, then single blocks.
    """
    in_groups = 0 if looks else blocks // (levels * len(hosts)) * levels * len(hosts)
    turns = [place // levels if place < in_groups else place for place in range(blocks)]
    return {place + 1: hosts[turn % len(hosts)] for place, turn in enumerate(turns)}


def elsewhere_of(plan: Plan) -> list[tuple[Role, str]]:
    """Return the hosts of load generators and replicas."""
    uses = list[tuple[Role, str]]()
    for name in plan.factor.levels:
        uses += [("load", host) for host in plan.level_load(name).generators]
        uses += [("follower", host) for host in plan.level(name).part("replication").get("on") or ()]
    return uses
