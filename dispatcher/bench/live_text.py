"""Prompts of a given length in tokens, made of words, that share beginnings as a trace says.

How long a text is in tokens depends on the target's tokenizer, so that is asked for: through
`/tokenize` where there is one, else by the usage that two short answers report. Words are common
and short: one token each for most tokenizers.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.traces import TraceCall

_WORDS = (
    "about above after again all also and any area as at away back base be been before best"
    " big body book both but by call came can case city close cost could day did do does done"
    " door down each early end even every eyes face fact far few field find fine first five"
    " food for form found four free from full game gave get girl give go gone good got great"
    " group had half hand hard has have he head hear help her here high him his home hope hour"
    " house how idea if in into is it job just keep kept kind knew know land large last late"
    " law lead left less let level life light like line list little live long look lost lot"
    " love low made main make man many mark may me mean men might mind money month more most"
    " much must my name near need never new next night no north not now of off office often on"
    " once one only open or order other our out over own page paid paper part past path people"
    " place plan play point power put quite rate read real red rest right road room run said"
    " same saw say school sea second see seen self sense set she short should show side since"
    " six size small so some soon sort south staff stand state stay step still such sure table"
    " take talk ten term test than that the their them then there they thing think this three"
    " time to today too took top town tree true try turn two type under unit until up us use"
    " very view voice wall want war was water way we week well went were west what when where"
    " which while white who whole why will wish with woman word work world would year yes yet"
    " you young your"
)
WORDS: tuple[str, ...] = tuple(_WORDS.split())
_CONTENTS_KEPT = 256
"""Word sequences of shared contents that are kept; made again when needed."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How many tokens a prompt of so many words has: `overhead + tokens_per_word x words`."""

    tokens_per_word: float = 1.0
    """Above 0."""
    overhead_tokens: float = 0.0
    """Of the chat template; at least 0."""

    def words(self, tokens: int) -> int:
        """Words of a prompt that should have so many tokens, at least 1."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))

    @staticmethod
    def between(short: tuple[int, int], long: tuple[int, int]) -> Measure:
        """The line through two prompts, each (words, tokens).

        Raises:
            ValueError: The longer one has no more tokens.
        """
        (few, tokens_of_few), (many, tokens_of_many) = short, long
        slope = (tokens_of_many - tokens_of_few) / (many - few)
        if slope <= 0.0:
            raise ValueError(f"{many} words are no more tokens than {few}")
        return Measure(slope, max(0.0, tokens_of_few - slope * few))


class Texts:
    """Writes prompts. The same run writes the same text for the same content, others do not.

    So what is shared within a trace is shared at the engine, and nothing is left in its prefix
    cache from runs before.
    """

    def __init__(self, measure: Measure, run: str) -> None:
        self._measure = measure
        self._run = run
        self._kept: OrderedDict[str, tuple[random.Random, list[str]]] = OrderedDict()

    def prompt(self, workflow_id: str, call: TraceCall) -> str:
        """The text of a call's prompt.

        Where a shared part reaches into an answer, what stands there is made up too: engines
        answer what they like, so a cache spares a live run the prompt, not the answers in it.
        """
        length = self._measure.words(call.prompt_tokens)
        words: list[str] = []
        for part in call.prefix:
            end = min(self._measure.words(part.end_tokens), length)
            words += self._shared(part.content, end)[len(words) : end]
        if len(words) < length:
            own = self._words_of(f"{workflow_id}/{call.call_id}", length - len(words))
            words += own
        return " ".join(words)

    def of_length(self, words: int, name: str) -> str:
        """A text of so many words."""
        return " ".join(self._words_of(name, words))

    def _words_of(self, name: str, count: int) -> list[str]:
        chance = random.Random(f"{self._run}/{name}")  # noqa: S311 - no secret
        return chance.choices(WORDS, k=count)

    def _shared(self, content: str, length: int) -> Sequence[str]:
        """At least `length` words of a content, from its beginning on."""
        kept = self._kept.get(content)
        if kept is None:
            chance = random.Random(f"{self._run}/shared/{content}")  # noqa: S311 - no secret
            kept = self._kept[content] = (chance, [])
            if len(self._kept) > _CONTENTS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(content)
        chance, words = kept
        if len(words) < length:
            words += chance.choices(WORDS, k=length - len(words))
        return words
