"""What tests of servers share."""

import pytest

from benchlib.errors import PreflightError


@pytest.fixture
def started(new_cluster):
    """Makes running servers of a version, with the database that loads run in; ``cut_off``: with neither it nor a network."""

    def make(version="18", *, cut_off=False, **settings):
        try:
            cluster = new_cluster(version)
        except PreflightError as reason:
            pytest.skip(f"PostgreSQL {version} has not been fetched: {reason}")
        cluster.configure(settings)
        cluster.start(cut_off=cut_off)
        if not cut_off:
            cluster.execute(f"CREATE DATABASE {cluster.database}", dbname="postgres")
        return cluster

    return make
