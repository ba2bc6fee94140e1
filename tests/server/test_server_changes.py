"""Changes to an external server can be undone repeatedly; only objects of benchlib are dropped."""

import pytest
from pydantic import ValidationError

from benchlib.server.changes import Altered, Created, connect_to, reload

pytestmark = pytest.mark.usefixtures("journal")


@pytest.mark.parametrize(
    ("name", "former", "value"),
    [
        ("work_mem", None, "8MB"),
        ("work_mem", "5MB", "8MB"),
        ("cluster_name", 'it\'s "quoted" \\ and more', "8MB"),
        ("plpgsql.extra_warnings", None, "all"),
    ],
)
def test_a_parameter_gets_back_what_the_file_held_or_leaves_it(foreign, name, former, value, monkeypatch):
    # as where the server loads the extension for everybody
    monkeypatch.setenv("PGOPTIONS", "-csession_preload_libraries=plpgsql")
    change = Altered(server="boss", name=name, former=former, value=value)
    with connect_to("boss") as connection:
        change.make(connection)
        reload(connection)
    assert foreign.altered() == {name: value}
    for _ in range(2):
        change.undo()
        assert foreign.altered() == ({name: former} if former else {})
    foreign.execute(f"ALTER SYSTEM RESET {name}")


def test_a_parameter_that_its_owner_has_set_meanwhile_stays(foreign):
    change = Altered(server="boss", name="work_mem", former="5MB", value="8MB")
    with connect_to("boss") as connection:
        change.make(connection)
    with foreign.given("ALTER SYSTEM SET work_mem = '6MB'"):
        change.undo()
        assert foreign.altered() == {"work_mem": "6MB"}
    change.undo()
    assert foreign.altered() == {}


@pytest.mark.parametrize("what", ["database", "schema"])
def test_what_was_created_goes_and_what_was_only_noted_needs_nothing(foreign, what):
    change, before = Created(server="boss", what=what, name="own_0123456789ab"), foreign.state()
    change.undo()
    with connect_to("boss") as connection:
        change.make(connection)
    assert foreign.state() != before
    for _ in range(2):
        change.undo()
        assert foreign.state() == before


@pytest.mark.parametrize("name", ["public", "payroll", "payroll_2026", "x_0123456789ab; DROP TABLE y"])
def test_what_is_not_named_as_ours_cannot_be_noted(name):
    with pytest.raises(ValidationError):
        Created(server="boss", what="schema", name=name)
