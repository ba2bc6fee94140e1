"""What a section shows, read back from its HTML."""

from bs4 import BeautifulSoup


def rows(shown):
    """A table's rows, each its cells by their headings."""
    soup = BeautifulSoup(shown.html, "html.parser")
    heads = [cell.get_text() for cell in soup.thead.find_all("th")]
    cells = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in soup.tbody.find_all("tr")]
    return [dict(zip(heads, row, strict=True)) for row in cells]


def named(shown):
    """The same rows by the first cell of each."""
    return {next(iter(row.values())): row for row in rows(shown)}


def note(shown):
    """What stands below a table."""
    return BeautifulSoup(shown.html, "html.parser").find(class_="bl-note").get_text()
