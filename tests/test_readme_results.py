"""What the README shows is what the recorded studies say."""

import pytest
import readme_of_results as results

from benchlib.study.store import DATA_VARIABLE


@pytest.fixture(autouse=True)
def of_the_project(monkeypatch):
    """The project's own data, whatever the user's are."""
    monkeypatch.setenv(DATA_VARIABLE, str(results.ROOT / "data"))


def test_the_table_of_effects_is_that_of_the_recorded_studies():
    assert results.table(results.recorded()) in (results.ROOT / "README.md").read_text()


def test_the_figure_is_that_of_its_study(recorded):
    assert results.FIGURE.read_text() == results.figure(recorded(results.SHOWN))
