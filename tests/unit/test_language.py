"""Plain language: what a check can judge of the words in the code and in the history of commits.

A docstring is a sentence about the thing that it stands at. So it does not begin in the air (Of, That, As …), and it
has a verb. Fields and constants may be described by a noun phrase: `Id of the thread.`
"""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ("schemas", "services", "reference", "demo", "bench")
HANGS = re.compile(r"(?:Of|That|As|To|By|Until)\b")
SUBJECT_CHARACTERS_MAX = 72
SINCE = "2026-12-01T01:00:00Z"
"""Commits before had subjects of any length."""

AUXILIARIES = "is are was were be has have had does do did may can could must will would should might need cannot"
VERBS = """
accept account act add adopt agree align allow analyze assign answer appear append apply approve arrive ask assume attach await
balance base be become begin belong bind block bound break bring build bundle call cancel carry catch cause change check
choose claim clean close collect combine come commit compact compare compile complete compute configure confirm connect
consist consume contain continue control convert copy cost count cover create cut decide declare decode defer define delay delete
deliver deny depend derive describe detect determine die differ discard dispatch divide double drain draw drop edit embed emit
encode end enforce ensure enter escape estimate evict examine exceed exist exit expect expire explain export extend fail
feed fetch fill filter find finish fire fit flush fold follow forget fork form format forward frame free gather generate get
give go grant group grow guard halve handle happen hash hear help hide hold ignore implement import include inform inherit
insert install interrupt join judge keep kill know label lack land last launch lead learn leave let lie limit link list
listen live load log look lose make map mark match mean measure merge migrate mirror miss move name need normalise note
number observe obey occur offer open order outlive own parse pass pause perform pick place play point poll post prefer
prepare preserve prevent print proceed process produce project promise propose prove provide publish pull push put query
quarantine queue quote race raise reach read rebuild receive recognise record recover reduce refer refresh refuse register reject
relate relay release rely remain remember remove rename render reopen repeat replace replay report represent request
require renew reset resolve respond restart restore resume retry return reveal revoke rewind rise roll round rule run save say
scan schedule see select send separate serve set settle share ship shorten show shrink shut sign signal simulate sit skip
sleep sort span spawn speak split stand start state stay steer stop store stream submit succeed suggest sum summarise
support swap switch take talk tell terminate test think throw time trace track translate treat trigger trim trust try turn
understand update upload use validate verify wait wake walk want warn watch win wire withdraw work wrap write yield
"""


class Docstring(NamedTuple):
    place: str
    text: str
    is_field: bool


def forms(verb: str) -> Iterator[str]:
    """The verb in the present tense: `carry` and `carries`, `pass` and `passes`."""
    yield verb
    if re.search(r"[^aeiou]y$", verb):
        yield f"{verb[:-1]}ies"
    elif re.search(r"(?:s|x|z|ch|sh|o)$", verb):
        yield f"{verb}es"
    else:
        yield f"{verb}s"


PRESENT = {form for verb in VERBS.split() for form in forms(verb)} | set(AUXILIARIES.split())


def docstrings(path: str, text: str) -> Iterator[Docstring]:
    """Those of modules, classes and functions, and the strings that stand below a field."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for at, statement in enumerate(body):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(words)), lineno=line):
                    is_field = at > 0
                    if at == 0 or isinstance(body[at - 1], ast.AnnAssign | ast.Assign):
                        yield Docstring(f"{path}:{line}", " ".join(words.split()), is_field)
                case _:
                    pass


def hanging(found: Iterable[Docstring]) -> list[str]:
    return [f"{each.place}: {each.text[:90]}" for each in found if HANGS.match(each.text)]


def without_verb(found: Iterable[Docstring]) -> list[str]:
    """Docstrings of modules, classes and functions without a verb in the present tense."""
    return [
        f"{each.place}: {each.text[:90]}"
        for each in found
        if not each.is_field and PRESENT.isdisjoint(_words(each.text))
    ]


def _words(text: str) -> set[str]:
    return {word.partition("'")[0] for word in re.findall(r"[a-z][a-z']*", text.lower())}


def long_subjects(subjects: Iterable[str]) -> list[str]:
    return [subject for subject in subjects if len(subject) > SUBJECT_CHARACTERS_MAX]


@pytest.fixture(scope="module")
def written() -> list[Docstring]:
    return [
        docstring
        for top in HOUSE
        for path in sorted((ROOT / top).rglob("*.py"))
        for docstring in docstrings(path.relative_to(ROOT).as_posix(), path.read_text())
    ]


def test_no_docstring_hangs_in_the_air(written: list[Docstring]) -> None:
    assert hanging(written) == []


@pytest.mark.parametrize("word", ["Of", "That", "As", "To", "By", "Until"])
def test_a_hanging_docstring_is_found(word: str) -> None:
    text = f'class A:\n    a: int\n    """{word} it."""\n\n    def f(self):\n        """{word}\n        it is."""\n'
    assert hanging(docstrings("a.py", text)) == [f"a.py:3: {word} it.", f"a.py:6: {word} it is."]


def test_every_docstring_has_a_verb(written: list[Docstring]) -> None:
    assert without_verb(written) == []


@pytest.mark.parametrize("text", ["Which one.", "One moment to the next.", "Told by its owner, once. Never twice."])
def test_a_docstring_without_a_verb_is_found(text: str) -> None:
    assert without_verb(docstrings("a.py", f'def f():\n    """{text}"""\n')) == [f"a.py:2: {text}"]


@pytest.mark.parametrize("text", ["Return the state.", "A claim expires.", "`x` is the state."])
def test_a_docstring_with_a_verb_is_not(text: str) -> None:
    assert without_verb(docstrings("a.py", f'def f():\n    """{text}"""\n')) == []


def test_a_field_may_have_a_noun_phrase() -> None:
    assert without_verb(docstrings("a.py", 'a = 1\n"""Id of the thread."""\n')) == []


def test_subjects_of_commits_are_short() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    command = [git, "log", f"--since={SINCE}", "--format=%s", "--no-merges"]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert long_subjects(ran.stdout.splitlines()) == []


def test_a_long_subject_is_found() -> None:
    longest = "x" * SUBJECT_CHARACTERS_MAX
    assert long_subjects([longest, longest + "x"]) == [longest + "x"]
