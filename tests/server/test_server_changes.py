"""A change to somebody else's server is undone as often as one likes, and nothing but our own is ever dropped."""

import pytest
from foreign import Foreign
from pydantic import ValidationError

from benchlib.errors import StudyError
from benchlib.server.changes import Altered, Created, connect_to, reload

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("services")]

DATABASE = Created(server="boss", what="database", name="benchlib_x_0123456789ab")
SCHEMA = Created(server="boss", what="schema", name="bench_own_0123456789ab")


@pytest.mark.parametrize("former", [None, "5MB", 'it\'s "quoted" \\ and more'])
def test_a_parameter_gets_back_what_the_file_held_or_leaves_it(foreign: Foreign, former: str | None) -> None:
    name = "cluster_name" if former and "quoted" in former else "work_mem"
    change = Altered(server="boss", name=name, former=former, value="8MB")
    with connect_to("boss") as connection:
        change.make(connection)
        reload(connection)
    assert foreign.altered() == {name: "8MB"}
    for _ in range(2):
        change.undo()
        assert foreign.altered() == ({name: former} if former else {})
    Altered(server="boss", name=name, former=None, value=former or "8MB").undo()


def test_a_parameter_that_its_owner_has_set_meanwhile_stays(foreign: Foreign) -> None:
    change = Altered(server="boss", name="work_mem", former="5MB", value="8MB")
    owners = Altered(server="boss", name="work_mem", former=None, value="6MB")
    with connect_to("boss") as connection:
        change.make(connection)
        owners.make(connection)
    change.undo()
    assert foreign.altered() == {"work_mem": "6MB"}
    owners.undo()
    change.undo()
    assert foreign.altered() == {}


def test_a_parameter_of_an_extension_can_be_altered(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Altered(server="boss", name="plpgsql.extra_warnings", former=None, value="all")
    # as where the server loads it for everybody
    monkeypatch.setenv("PGOPTIONS", "-csession_preload_libraries=plpgsql")
    with connect_to("boss") as connection:
        change.make(connection)
    assert foreign.altered() == {"plpgsql.extra_warnings": "all"}
    change.undo()
    assert foreign.altered() == {}


@pytest.mark.parametrize("change", [DATABASE, SCHEMA], ids=str)
def test_what_was_created_goes_and_what_was_only_noted_needs_nothing(
    foreign: Foreign, change: Created
) -> None:
    before = foreign.databases(), foreign.schemas()
    change.undo()
    with connect_to("boss") as connection:
        change.make(connection)
    assert (foreign.databases(), foreign.schemas()) != before
    change.undo()
    assert (foreign.databases(), foreign.schemas()) == before
    change.undo()


def test_a_server_that_cannot_be_reached_is_one_line_that_says_how_to_go_on() -> None:
    change = Altered(server="gone", name="work_mem", former=None, value="8MB")
    with pytest.raises(
        StudyError, match=r"run 'benchlib recover' where .*: definition of service \"gone\" not found$"
    ):
        change.undo()


@pytest.mark.parametrize("name", ["public", "payroll", "payroll_2026", "x_0123456789ab; DROP TABLE y"])
def test_what_is_not_named_as_ours_cannot_be_noted(name: str) -> None:
    with pytest.raises(ValidationError):
        Created(server="boss", what="schema", name=name)
