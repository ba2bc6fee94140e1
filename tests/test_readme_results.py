"""The README's results are those of the recorded studies."""

import pytest
import readme_of_results as results

from benchlib.report.site import REPORTS_VARIABLE
from benchlib.study.store import DATA_VARIABLE


@pytest.mark.long
def test_the_table_of_results_is_that_of_the_recorded_studies(monkeypatch, tmp_path):
    monkeypatch.setenv(DATA_VARIABLE, str(results.README.parent / "data"))
    monkeypatch.setenv(REPORTS_VARIABLE, str(tmp_path))
    assert results.table() in results.README.read_text()
