"""The last line of defence of a page: of an output's HTML only what our own tables, charts and sentences are made of.

What a study says is escaped where its HTML is made; should that fail once, or a notebook show somebody else's
HTML, nothing that runs, loads or leads out of the site is left of it.
"""

import re
from collections import Counter

from bs4 import BeautifulSoup
from bs4.element import PreformattedString
from markupsafe import Markup

_ELEMENTS = (
    "a abbr b br caption code details div em figcaption figure i p pre small span strong sub summary sup table tbody td "
    "tfoot th thead tr wbr svg clippath defs g image path rect text title use"
)
_ATTRIBUTES = (
    "aria-label clip-path class colspan d data-csv data-figure height href id role rowspan scope style tabindex title "
    "transform viewbox width x xmlns y"
)
_INSIDE = re.compile(r"#[\w.-]+|[\w-][\w.-]*|data:image/png;base64,[\w+/=\s]+")
"""Where a link may lead: a place on the page, a file beside it; and a picture that is in the page."""
_EMPTY = re.compile(r"></(path|use|rect|image)>")
_LOADING = re.compile(r"url\(\s*(?!#)|image|src|position|[@\\]", re.IGNORECASE)


def cleaned(html: str, counts: Counter[str], base: str = "") -> Markup:
    """The HTML without all other elements, with what is in them, and without their other attributes.

    Its figures and tables get their numbers, which are links to them; ``counts`` are those that the page has already.
    ``base`` is where the files beside the page are published.
    """
    soup = BeautifulSoup(html, "html.parser")
    elements, attributes = _ELEMENTS.split(), _ATTRIBUTES.split()
    for comment in soup.find_all(string=lambda text: isinstance(text, PreformattedString)):
        comment.extract()
    for tag in soup.find_all(True):
        if tag.name not in elements:
            tag.decompose()
            continue
        if tag.name == "th" and not tag.get_text(strip=True):
            tag.name = "td"  # a header that says nothing is none
        for name, value in list(tag.attrs.items()):
            leaves = name == "href" and not _INSIDE.fullmatch(str(value))
            loads = name in ("style", "clip-path") and _LOADING.search(str(value))
            if name not in attributes or leaves or loads:
                del tag[name]
        if base and tag.name == "a" and not str(tag.get("href", "#")).startswith("#"):
            tag["href"] = f"{base}{tag['href']}"
    for part in soup.select("figure, .bl-scroll"):
        if title := part.select_one(".bl-title, figcaption, caption span"):
            kind = "Figure" if part.name == "figure" else "Table"
            counts[kind] += 1
            part["id"] = f"{kind.lower()}-{counts[kind]}"
            link = soup.new_tag("a", attrs={"class": "bl-number-of", "href": f"#{part['id']}"})
            link.string = f"{kind} {counts[kind]}."
            title.insert(0, " ")
            title.insert(0, link)
    return Markup(_EMPTY.sub("/>", str(soup)))
