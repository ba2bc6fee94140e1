"""Loaded data sets: stopped clusters that those of a study are copies of."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
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
from benchlib.server.remote import Remote
from benchlib.server.server import DATABASE

FAST_LOADING: dict[str, SettingValue] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "4GB",
    # what is loaded then leaves next to no WAL behind (33 MB instead of 1.2 GB at scale 100), which every
    # copy would carry along; loading takes a third less time too
    "wal_level": "minimal",
    "max_wal_senders": 0,
}


class Templates:
    """The clusters that are copied, in a run's folder: one for each installation, initdb options and data set."""

    def __init__(
        self, run: Run, shell: Shell, scale: int, tell: Callable[[str], None], *, abroad: bool = False
    ) -> None:
        self.run = run
        self.abroad = abroad
        self.shell = shell
        self.scale = scale
        self.tell = tell
        self._empty: dict[tuple[Path, tuple[str, ...]], Cluster] = {}
        self._loaded: dict[tuple[Path, tuple[object, ...]], Cluster] = {}
        # an installation itself, or a copy of it that the servers' user can run
        self.reach = cache(lambda one: installations.runnable_by(shell, one, run.folder))

    def pgbench(self) -> Path:
        """The pgbench that drives every server, where the servers' user can reach it."""
        return self.reach(installations.find_pgbench(abroad=self.abroad)).program("pgbench")

    def program(self, name: str, level: Level) -> Path:
        """A program for a level's server: of its own installation, or of one that will do."""
        its_own = installations.find_installation(level.postgres)
        return self.reach(installations.find_program_for(its_own, name)).program(name)

    def empty(self, level: Level) -> Cluster:
        """A cluster for a level as initdb leaves it; never started.

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
        """The loaded, stopped cluster that those of a level with this workload are copies of."""
        empty = self.empty(level)
        key = (empty.folder, workload.contents)
        if key not in self._loaded:
            self.tell(f"loading the data set into {empty.installation.label}")
            template = empty.clone(self.run.folder / f"t{len(self._loaded)}")
            try:
                template.configure(FAST_LOADING)
                template.start()
                try:
                    template.execute(f"CREATE DATABASE {DATABASE}", dbname=template.maintenance)
                    load(template, workload, self.scale, self.shell, self.pgbench())
                finally:
                    template.stop()
            except BaseException:  # its place is that of the next
                self.shell.remove(template.folder)
                raise
            self._loaded[key] = template
        return self._loaded[key]

    def check_initdb(self, name: str, level: Level) -> None:
        """Make a level's empty cluster, before anything is loaded.

        Raises:
            PreflightError: initdb refuses the level's options; the message has its reason.

        """
        try:
            self.empty(level)
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
    """What clusters are made with, in a guarded run of its own; when it is left none of them runs.

    ``environment`` has variables for the processes, such as how libpq reaches another server; ``abroad``: servers are not all ours.

    Raises:
        PreflightError, StudyError: as :func:`benchlib.host.guardian.guarded_run`.

    """
    with guarded_run(scratch_root(), what, tell) as run:
        yield Templates(run, Shell(server_user(), environment), scale, tell, abroad=abroad)


def load(server: Cluster | Remote, workload: Workload, scale: int, shell: Shell, program: Path) -> None:
    """Load a workload's data and bring it to a known state; ``program`` is the pgbench that drives every server.

    Raises:
        LoadError: the load tool could not load its tables.
        PreflightError: it is not installed.
        ServerError: the server refused a statement.

    """
    load_tool(workload.tool, program).fill(shell, server.connection, workload, scale)
    if workload.load_sql:
        server.execute(at_scale(workload.load_sql, scale))
    server.vacuum("FREEZE, ANALYZE")  # what is not frozen, the first scan would write to
    if workload.unanalyzed_sql:
        server.execute(at_scale(workload.unanalyzed_sql, scale))
        server.vacuum("FREEZE")
    server.checkpoint()
