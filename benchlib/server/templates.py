"""Loaded data sets: stopped clusters that a study copies."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchlib.errors import PreflightError, TrialError
from benchlib.host.guardian import Run, guarded_run, scratch_root
from benchlib.host.shell import Shell, server_user
from benchlib.load.tools import load_tool
from benchlib.plan.level import Level, SettingValue
from benchlib.plan.workload import Workload, at_scale
from benchlib.server import installations
from benchlib.server.cluster import Cluster
from benchlib.server.datasets import restore
from benchlib.server.remote import Remote
from benchlib.server.schema import SchemaCost, change_schema
from benchlib.server.server import DATABASE

FAST_LOADING: dict[str, SettingValue] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "4GB",
    # 33 MB of WAL in each copy instead of 1.2 GB at scale 100; loading takes a third less time
    "wal_level": "minimal",
    "max_wal_senders": 0,
}


@dataclass(eq=False)
class Templates:
    """The clusters to copy, one per installation, initdb options and data set."""

    run: Run
    shell: Shell
    scale: int
    tell: Callable[[str], None]
    abroad: bool = False
    _empty: dict[tuple[Path, tuple[str, ...]], Cluster] = field(default_factory=dict)
    _loaded: dict[tuple[Path, tuple[object, ...], str | None], Cluster] = field(default_factory=dict)
    costs: dict[Path, SchemaCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reach = cache(lambda one: installations.runnable_by(self.shell, one, self.run.folder))

    def pgbench(self) -> Path:
        """Return a pgbench for all servers."""
        return self.reach(installations.find_pgbench(abroad=self.abroad)).program("pgbench")

    def program(self, name: str, level: Level) -> Path:
        """Return a program for a level."""
        installation = installations.find_installation(level.postgres)
        return self.reach(installations.find_program_for(installation, name)).program(name)

    def empty(self, level: Level) -> Cluster:
        """Return a level's cluster after initdb.

        Raises:
            ServerError: initdb refuses the level's options.

        """
        installation = self.reach(installations.find_installation(level.postgres))
        key = (installation.bindir, level.initdb)
        if key not in self._empty:
            cluster = Cluster(self.shell, installation, self.run.folder / f"e{len(self._empty)}")
            cluster.create(level.initdb)
            self._empty[key] = cluster
        return self._empty[key]

    def loaded(self, level: Level, workload: Workload) -> Cluster:
        """Return a stopped cluster with a workload's data."""
        origin = self.loaded(level.changed(sql=None), workload) if level.sql else self.empty(level)
        key = (origin.folder, workload.contents, level.sql)
        if key not in self._loaded:
            template = origin.clone(self.run.folder / f"t{len(self._loaded)}")
            try:
                # what a schema change writes to the WAL is as on a server in use
                template.configure({"autovacuum": "off"} if level.sql else FAST_LOADING)
                template.start(cut_off=bool(workload.data))
                try:
                    if level.sql:
                        self.tell("running the level's sql")
                        self.costs[template.folder] = change_schema(template, self.shell, level.sql)
                    else:
                        self.tell(f"loading the data set into {origin.installation.label}")
                        if workload.data and not template.can_be_cut_off():
                            self.tell("the dump is restored with the network in reach (no namespaces here)")
                        if not workload.data:
                            template.execute(f"CREATE DATABASE {DATABASE}", dbname=template.maintenance)
                        self.load(template, workload, self.shell)
                finally:
                    template.stop()
            except BaseException:  # the next attempt uses the same directory
                self.shell.remove(template.folder)
                raise
            self._loaded[key] = template
        return self._loaded[key]

    def load(self, server: Cluster | Remote, workload: Workload, shell: Shell) -> None:
        """Load a workload's data; see :func:`load`."""
        if workload.data and not workload.data.template:
            restore(workload.data, server, shell, self.run.folder, self.tell)
        load(server, workload, self.scale, shell, self.pgbench())

    def check(self, name: str, level: Level, workload: Workload) -> None:
        """Create a level's empty cluster; with ``sql``, load its data too.

        Raises:
            PreflightError: initdb refuses the level's options, or the server its ``sql``.

        """
        try:
            self.loaded(level, workload) if level.sql else self.empty(level)
        except TrialError as error:
            raise PreflightError(f"level “{name}”: {error}") from error


@contextlib.contextmanager
def workshop(
    what: str,
    scale: int,
    tell: Callable[[str], None] = lambda _: None,
    environment: Mapping[str, str] = {},
    *,
    abroad: bool = False,
) -> Iterator[Templates]:
    """Yield the templates of a guarded run.

    Raises:
        PreflightError, StudyError: as :func:`benchlib.host.guardian.guarded_run`.

    """
    with guarded_run(scratch_root(), what, tell) as run:
        yield Templates(run, Shell(server_user(), environment), scale, tell, abroad=abroad)


def load(server: Cluster | Remote, workload: Workload, scale: int, shell: Shell, program: Path) -> None:
    """Load a workload's data, vacuum and checkpoint.

    Raises:
        LoadError: the load tool failed.
        PreflightError: it is not installed.
        ServerError: the server refused a statement.

    """
    load_tool(workload.tool, program).fill(shell, server.connection, workload, scale)
    if workload.load_sql:
        server.execute(at_scale(workload.load_sql, scale), as_load=True)
    server.vacuum("FREEZE, ANALYZE")  # else the first scan writes hint bits
    if workload.unanalyzed_sql:
        server.execute(at_scale(workload.unanalyzed_sql, scale), as_load=True)
        server.vacuum("FREEZE")
    server.checkpoint()
