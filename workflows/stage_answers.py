"""Answers that are remembered: the same question has the same answer, and few are asked anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_ANSWERS = 8_192
"""Answers remembered to each kind of question, of all applications together; what was asked least
recently goes first."""

Key = tuple[object, ...]
Answer = TypeVar("Answer")


class Answers(Generic[Answer]):
    """Answers to one kind of question."""

    def __init__(self) -> None:
        #: the one asked for least recently first
        self._answers: OrderedDict[Key, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key, ask: Callable[[], Answer]) -> Answer:
        """The answer of before, else the one found now."""
        if key in self._answers:
            self._answers.move_to_end(key)
        else:
            self._answers[key] = ask()
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return self._answers[key]

    def clear(self) -> None:
        """Forget all of them."""
        self._answers.clear()
