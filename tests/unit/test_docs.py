"""The documents: their words are in the glossary, and what they point to is there."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from reference.settings import own_settings, settings_classes
from services.chassis.removed_settings import PREFIX, REMOVED

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


def unknown_settings(page: str, known: Iterable[str]) -> list[str]:
    """Settings that a page names and no service reads. A name that ends with `_` stands for several."""
    return sorted({name for name in re.findall(r"THREADLOG_[A-Z_]+", page) if not name.endswith("_")} - set(known))


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


NOT_OF_SERVICES = {
    *("THREADLOG_URL", "THREADLOG_TOKEN", "THREADLOG_TENANT", "THREADLOG_IDEMPOTENCY_KEY", "THREADLOG_CALL"),
    *("THREADLOG_TEST_KAFKA", "THREADLOG_TEST_POSTGRES", "THREADLOG_TURN", "THREADLOG_THREAD"),
}
"""Variables of the command, of tools and of tests."""


def test_pages_name_settings_that_are_read() -> None:
    read = {setting.variable for kind in settings_classes() for setting in own_settings(kind)} | NOT_OF_SERVICES
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    assert {page.name: names for page in pages if (names := unknown_settings(page.read_text(), read))} == {}


def test_a_setting_that_nobody_reads_is_found() -> None:
    assert unknown_settings("THREADLOG_A, THREADLOG_EXECUTOR_*, THREADLOG_B", ["THREADLOG_B"]) == ["THREADLOG_A"]
    assert all(f"{PREFIX}{name}" not in NOT_OF_SERVICES for name in REMOVED)
