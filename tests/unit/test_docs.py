"""The documents: their words are in the glossary, and what they point to is there."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GLOSSARY = DOCS / "glossary.md"
PAGES = (*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
TERM = re.compile(r"\*\*([a-z][a-z-]*(?: [a-z-]+){0,2})\*\*")
"""A project word where it is introduced: bold, in lower case, up to three words. Lead-ins begin with a capital letter."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
PLACE = re.compile(r"`((?:services|schemas|reference|demo|bench|tests|examples|deploy)/[\w./-]*\w)`")


def defined(glossary: str) -> list[str]:
    return re.findall(r"^\| \*\*([^*]+)\*\* \|", glossary, re.MULTILINE)


def undefined(page: str, terms: Iterable[str]) -> list[str]:
    """Project words of a page that the glossary does not explain."""
    return sorted(set(TERM.findall(page)) - set(terms))


def dead_links(page: str, folder: Path) -> Iterator[str]:
    """Relative links, and paths in the code's font, to files that are not there."""
    for target in LINK.findall(page):
        if "://" not in target and not (folder / target).exists():
            yield target
    for place in PLACE.findall(page):
        if not (ROOT / place).exists():
            yield place


def test_the_glossary_explains_every_project_word() -> None:
    terms = defined(GLOSSARY.read_text())
    assert {page.name: words for page in PAGES if (words := undefined(page.read_text(), terms))} == {}


def test_an_unexplained_word_is_found() -> None:
    assert undefined("A **fold** is a **dead letter**. **Not this.** **One, two**", ["fold"]) == ["dead letter"]


def test_the_glossary_is_in_order() -> None:
    terms = defined(GLOSSARY.read_text())
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_points_to_is_there(page: Path) -> None:
    assert list(dead_links(page.read_text(), page.parent)) == []


def test_a_dead_link_is_found() -> None:
    page = "[a](gone.md) [b](README.md#part) [c](https://threadlog.dev/x) `services/gone.py` `schemas/thread.py`"
    assert list(dead_links(page, ROOT)) == ["gone.md", "services/gone.py"]
