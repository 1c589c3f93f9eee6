"""Reads what a person types into a search. Every text is a valid question.

Words that most texts contain are left out, unless the question has no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import normalize

__all__ = [
    "WORD_BREAK",
    "SearchPhrase",
    "SearchWords",
    "read_search",
    "stem_of",
    "with_word_breaks",
]

_PHRASES_MAX = 32
WORD_BREAK = "\x1f"
"""Stands in the index between characters of scripts that write no spaces between words."""

# Han, kana and Hangul: a text in them is searched character by character.
_UNSPACED = (
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003134f"
)
_BESIDE_UNSPACED = re.compile(f"(?<=[{_UNSPACED}])(?=\\w)|(?<=\\w)(?=[{_UNSPACED}])")
# A minus before a digit is that of a number.
_PART = re.compile(
    r'(?P<sign>(?:-(?=["\w])(?!\d))?)(?:"(?P<phrase>[^"]*)(?:"|$)|(?P<word>[^\s"]+))'
)
# A letter may be followed by its accents.
_WORD = re.compile(r"(?:[^\W_][\u0300-\u036f]*)+(?:['’](?:[^\W_][\u0300-\u036f]*)+)*")
# Quotes of other languages; a search treats them alike.
_QUOTES = str.maketrans(dict.fromkeys("“”„«»‟", '"'))
_STEM_MIN = 4

_ENGLISH = """a about after all also am an and any are as at be because been before being between
both but by can could did do does doing down each few for from further give had has have having he
her here hers him his how i if in into is it its just let like many may me might more most much must
my no nor not now of off on once only or other our out over own please same shall she should show
so some such tell than that the their them then there these they this those through to too under
until up us very was we were what when where which while who whom whose why will with would you your
"""
_GERMAN = """aber alle als am an auch auf aus bei bis bist da das dass dein dem den der des die
dies diese dieser dieses doch du durch ein eine einem einen einer eines er es für gibt hatte
haben ich ihr im in ist ja kann kein keine mein mir mit nach nicht noch nur oder ohne sehr sein
seine sich sie sind so über um und uns unter vom von vor waren warum was welche welchem welchen
welcher welches wenn wer werden wie wieviel wir wird wo wurde zu zum zur"""
_FRENCH = """au aux avec ce ces cette comment dans de des du elle en est et être fut ici il ils je
la le les leur lui ma mais mes moi mon ne nos notre nous on ou où par pas quand que quel quelle
quelles quels qui quoi sa sans se ses sont sur ta te tes toi ton tu un une vos votre vous"""
_SPANISH = """al como con cual cuál cuando cuándo de del donde dónde el ella en es esta está este
esto fue ha han la las le lo los más mi muy no nos o para pero por porque que qué quien quién se
ser si sí sobre son su sus también tu un una uno unos y ya"""
_ITALIAN = """ai al alla alle anche che chi ci con cosa da dal dalla degli dei del della delle di
e è gli i il in io la le lo loro ma mi nel nella noi non o per perché più quale quali quando
quanto quello questa questo se sei si sono su sul sulla tra un una uno"""
_DUTCH = """aan als bij dat de deze die dit een en er haar heeft hebben het hij hoe hoeveel ik in
is kan maar met mijn naar niet nog of om ook op over te tot uit voor waar wanneer wat welke wie
wij worden wordt zal ze zich zij zijn"""
_PORTUGUESE = """ao aos as com como da das de do dos e é ela ele em eram essa esse esta este eu foi
há isso já lhe mais mas me meu minha muito na nas nem no nos não o os ou para pela pelo por quais
qual quando que quem se sem ser seu sua são também um uma"""
_IGNORED = frozenset(
    " ".join((_ENGLISH, _GERMAN, _FRENCH, _SPANISH, _ITALIAN, _DUTCH, _PORTUGUESE)).split()
)


class SearchPhrase(NamedTuple):
    """Words in a row."""

    text: str
    """The words, with one space between two of them."""
    is_prefix: bool = False
    """Whether the last word may go on."""


class SearchWords(NamedTuple):
    """What a question asks for."""

    any_of: tuple[SearchPhrase, ...] = ()
    """Each makes a segment fit better, and one of them must occur."""
    required: tuple[SearchPhrase, ...] = ()
    """All must occur."""
    excluded: tuple[SearchPhrase, ...] = ()
    """None may occur."""

    @property
    def is_empty(self) -> bool:
        """Whether no segment can fit: the question only excludes, or has no words."""
        return not self.any_of and not self.required


def read_search(text: str) -> SearchWords:
    """Return what a question asks for. No text is invalid; some have no words."""
    words: list[SearchPhrase] = []
    required: list[SearchPhrase] = []
    excluded: list[SearchPhrase] = []
    for part in _PART.finditer(normalize("NFC", text).translate(_QUOTES)):
        phrase = part["phrase"]
        into = excluded if part["sign"] else required
        if phrase is not None:
            spoken = " ".join(_WORD.findall(phrase))
            into += [SearchPhrase(spoken)] if spoken else []
            continue
        found = list(_phrases(part["word"]))
        if part["sign"]:
            excluded += found
        else:
            words += found
    telling = [each for each in words if each.is_prefix or each.text.casefold() not in _IGNORED]
    if not telling and not required:
        telling = words
    return SearchWords(*map(_distinct, (telling, required, excluded)))


def _phrases(part: str) -> Iterator[SearchPhrase]:
    """Yield the words of text without spaces; those that a sign joins, as in 12-345, too."""
    is_prefix = part.endswith("*")
    found = _WORD.findall(part)
    for number, word in enumerate(found, 1):
        yield SearchPhrase(word, is_prefix and number == len(found))


def _distinct(phrases: list[SearchPhrase]) -> tuple[SearchPhrase, ...]:
    known = {(each.text.casefold(), each.is_prefix): each for each in reversed(phrases)}
    kept = [each for each in phrases if known.get((each.text.casefold(), each.is_prefix)) is each]
    return tuple(kept[:_PHRASES_MAX])


def stem_of(word: str) -> str | None:
    """Return the beginning that other forms of a word have, too; None for words that are short.

    It only drops endings of plurals, which several languages share.
    """
    if not word.isalpha() or len(word) < _STEM_MIN:
        return None
    folded = word.casefold()
    for ending in ("es", "s"):
        if folded.endswith(ending) and len(word) - len(ending) >= _STEM_MIN:
            return word[: -len(ending)]
    return word


def with_word_breaks(text: str) -> str:
    """Return text with a break between characters of scripts that write no spaces."""
    return _BESIDE_UNSPACED.sub(WORD_BREAK, text)
