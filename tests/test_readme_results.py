"""The README's results are those of the pages in reports/."""

import readme_of_results as results


def test_the_table_of_results_is_that_of_the_recorded_pages():
    assert results.table() in results.README.read_text(), "run 'make reports' and 'make readme'"
