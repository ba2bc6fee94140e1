"""A notebook's HTML as the body of a page: nothing that loads or runs, headings in order, long tables folded."""

import re
from collections import Counter
from dataclasses import dataclass

from bs4 import BeautifulSoup, Tag

# Elements that load something or run: a published page does neither.
_LOADING = re.compile("^(script|link|iframe|object|embed|base|meta|form|video|audio|picture)$")
_REMOTE = re.compile(r"url\(\s*['\"]?(?!#|data:|['\"])|@import", re.IGNORECASE)

_LONG = 20
"""Rows beyond which a table is folded."""


@dataclass(frozen=True)
class Heading:
    """An entry of the contents list: 2 for a section, 3 for a part of one."""

    level: int
    anchor: str
    text: str


def tidy(html: str, title: str) -> tuple[str, list[Heading]]:
    """The body for a page whose only `h1` is `title`, and its contents list."""
    soup = BeautifulSoup(html, "html.parser")
    _still(soup)
    headings = _ordered(soup, title)
    for pre in soup.find_all("pre"):
        pre["tabindex"] = "0"
    for number, table in enumerate(soup.find_all("table"), 1):
        if table.find_parent(class_="bl-scroll") is None:
            caption = table.find("caption")
            label = caption.get_text(" ", strip=True) if caption else f"Table {number}"
            region = {"class": "bl-scroll", "role": "region", "tabindex": "0", "aria-label": label}
            table.wrap(soup.new_tag("div", attrs=region))
            table["class"] = " ".join(filter(None, [*table.get_attribute_list("class"), "bl-table"]))
            del table["border"]
            for head in table.find_all("th"):
                head["scope"] = "col" if head.find_parent("thead") else "row"
                if not head.get_text(strip=True):
                    head.name = "td"
                    del head["scope"]
    _fold(soup)
    contents = [Heading(int(h.name[1]), str(h["id"]), h.get_text(" ", strip=True)) for h in headings]
    return str(soup), [heading for heading in contents if heading.level <= 3]


def _fold(soup: BeautifulSoup) -> None:
    """Fold tables that are too long to be read in passing; a sentence says how long each is."""
    for region in soup.find_all(class_="bl-scroll"):
        rows = len(region.select("tbody tr"))
        if rows > _LONG and region.find_parent("details") is None:
            summary = soup.new_tag("summary")
            summary.string = f"{region['aria-label']} ({rows} rows)"
            region.wrap(soup.new_tag("details", attrs={"class": "bl-long"})).insert(0, summary)


def _still(soup: BeautifulSoup) -> None:
    """Drop what would load or run, and the styles that the page has once for all of its figures."""
    for tag in soup.find_all(_LOADING):
        tag.decompose()
    for style in soup.find_all("style"):
        ours = style.find_parent(class_=["bl-figure", "bl-scroll"])  # pandas' own is "scoped"
        if ours or style.has_attr("scoped") or _REMOTE.search(style.get_text()):
            style.decompose()
    for image in soup.find_all("img"):
        if not str(image.get("src", "")).startswith("data:"):
            link = soup.new_tag("a", attrs={"href": str(image.get("src", ""))})
            link.string = str(image.get("alt") or "picture")
            image.replace_with(link)
    for tag in soup.find_all(style=_REMOTE):
        del tag["style"]


def _ordered(soup: BeautifulSoup, title: str) -> list[Tag]:
    """Bring headings below the page's `h1`, without gaps and with an anchor each; the notebook's own title goes."""
    headings = soup.find_all(re.compile("^h[1-6]$"))
    tops = [heading for heading in headings if heading.name == "h1"]
    if tops and tops[0] is headings[0] and (len(tops) == 1 or tops[0].get_text(strip=True) == title):
        headings.pop(0).decompose()
        tops.pop(0)
    above, seen = 1, Counter[str]()
    for heading in headings:
        above = min(int(heading.name[1]) + bool(tops), above + 1, 6)
        heading.name = f"h{above}"
        anchor = re.sub(r"\W+", "-", heading.get_text()).strip("-") or "section"
        seen[anchor] += 1
        heading["id"] = f"{anchor}-{seen[anchor]}" if seen[anchor] > 1 else anchor
    return headings
