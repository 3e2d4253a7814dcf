"""The repository that the agent works on: a few lines of Python with a mistake in them, and the test that finds it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SECONDS_MAX: Final = 60.0

PRICES: Final = '''\
"""Prices in cents."""


def total(prices: list[int]) -> int:
    return sum(prices)
'''
PRICES_WITH_DISCOUNT: Final = '''\
"""Prices in cents."""


def total(prices: list[int], discount_percent: int = 0) -> int:
    """What is to be paid; the discount is rounded to the nearest cent."""
    subtotal = sum(prices)
    discount = subtotal // 100 * discount_percent
    return subtotal - discount
'''
TESTS: Final = """\
import unittest

from prices import total


class TotalTest(unittest.TestCase):
    def test_it_is_the_sum(self):
        self.assertEqual(total([999, 1000]), 1999)

    def test_a_discount_is_taken_off(self):
        self.assertEqual(total([1000], discount_percent=10), 900)

    def test_a_discount_counts_every_cent(self):
        self.assertEqual(total([1999], discount_percent=10), 1799)
"""
CHANGES: Final = """\
# Changes

- Add prices up
"""
COMMITS: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("Add prices up", {"prices.py": PRICES, "CHANGELOG.md": CHANGES}),
    ("Take a discount off", {"prices.py": PRICES_WITH_DISCOUNT, "CHANGELOG.md": CHANGES + "- Take a discount off\n"}),
    ("Test totals", {"test_prices.py": TESTS, ".gitignore": "__pycache__/\n"}),
)

# Whatever the user has configured (hooks, signatures, an editor) has no part in this.
_GIT_ENVIRONMENT: Final = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


@dataclass(frozen=True, slots=True)
class UnittestRun:
    exit_code: int
    output: str

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def summary(self) -> str:
        """Unittest's last line, such as `FAILED (failures=1)`."""
        return self.output.strip().rpartition("\n")[2]


def make_repository(folder: Path) -> None:
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet")
    for message, files in COMMITS:
        for name, text in files.items():
            (folder / name).write_text(text)
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", message)


def run_tests(folder: Path) -> UnittestRun:
    command = [sys.executable, "-m", "unittest"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    return UnittestRun(ran.returncode, ran.stdout + ran.stderr)


def _git(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, **_GIT_ENVIRONMENT}
    command = ["git", *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=SECONDS_MAX)
