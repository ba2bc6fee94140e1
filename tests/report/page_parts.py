"""What a section shows, read back from its HTML."""

from bs4 import BeautifulSoup


def rows(shown):
    """The rows of all its tables, each its cells by their headings."""
    cells_of = []
    for table in BeautifulSoup(shown.html, "html.parser").find_all("table"):
        heads = [cell.get_text() for cell in table.thead.find_all("th")]
        cells = [
            [cell.get_text() for cell in row.find_all(["th", "td"])] for row in table.tbody.find_all("tr")
        ]
        cells_of += [dict(zip(heads, row, strict=True)) for row in cells]
    return cells_of


def named(shown):
    """The same rows by the first cell of each."""
    return {next(iter(row.values())): row for row in rows(shown)}


def note(shown):
    """What stands below its tables."""
    soup = BeautifulSoup(shown.html, "html.parser")
    return " ".join(part.get_text() for part in soup.find_all(class_="bl-note"))
