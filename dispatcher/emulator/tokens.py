"""A tokenizer without a vocabulary: deterministic, reversible, about four characters a token.

A token is a piece of up to seven ASCII characters, or one other character; its id is the piece
itself, packed into an integer below 2**53 (so that every JSON reader keeps it exact). Ids below 128
are no piece's: the chat template's marks live there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Marks of the chat template; the end of a turn also ends an answer.
BEGIN_ID, END_OF_TURN_ID = 1, 2
_ROLE_IDS = {"system": 4, "developer": 4, "user": 5, "assistant": 6, "tool": 7}
_OTHER_ROLE_ID = 8
_HEADER_START_ID, _HEADER_END_ID = 9, 10

MAX_PIECE_CHARS = 7
"""No token covers more characters than this."""

_PIECE = re.compile(
    r" ?[A-Za-z]{1,6}| ?[0-9]{1,3}| ?[!-/:-@\[-`{-~]{1,2}|[\x00-\x20\x7f]{1,4}|[^\x00-\x7f]"
)
_NON_ASCII_BASE = 1 << 50
_CACHE_ENTRIES = 1 << 16


class _IdCache(dict[str, int]):
    """Ids by piece, emptied when full, so that a hostile text cannot grow it without bound."""

    def __missing__(self, piece: str) -> int:
        if len(self) >= _CACHE_ENTRIES:
            self.clear()
        token_id = self[piece] = _pack(piece)
        return token_id


def _pack(piece: str) -> int:
    if piece.isascii():
        packed = 1
        for char in piece:
            packed = packed << 7 | ord(char)
        return packed
    return _NON_ASCII_BASE + ord(piece)


_IDS = _IdCache()


def pieces(text: str) -> list[str]:
    """Cut a text into its tokens' pieces; joined, they are the text again.

    Example:
        >>> pieces("SELECT name FROM t;")
        ['SELECT', ' name', ' FROM', ' t', ';']
    """
    return _PIECE.findall(text)


def ids_of(parts: Sequence[str]) -> list[int]:
    """Return the ids of pieces."""
    ids = _IDS
    return [ids[part] for part in parts]


def encode(text: str) -> list[int]:
    """Return the token ids of a text."""
    return ids_of(pieces(text))


def decode_one(token_id: int) -> str:
    """Return a token's piece; marks are empty, and what no text encodes to is U+FFFD."""
    if 0 <= token_id < 128:
        return ""
    if token_id >= _NON_ASCII_BASE:
        code = token_id - _NON_ASCII_BASE
        return chr(code) if 128 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
    chars: list[str] = []
    while token_id > 1:
        chars.append(chr(token_id & 127))
        token_id >>= 7
    return "".join(reversed(chars)) if token_id == 1 else "\ufffd"


def decode(token_ids: Sequence[int]) -> str:
    """Return the text of token ids.

    Example:
        >>> decode(encode("naïve plan: 100 %"))
        'naïve plan: 100 %'
    """
    return "".join([decode_one(token_id) for token_id in token_ids])


def turn_ids(role: str, text: str) -> list[int]:
    """Return the ids of one chat turn: header, text, end mark."""
    role_id = _ROLE_IDS.get(role, _OTHER_ROLE_ID)
    return [_HEADER_START_ID, role_id, _HEADER_END_ID, *encode(text), END_OF_TURN_ID]


def generation_header_ids() -> list[int]:
    """Return the ids that ask the assistant to speak."""
    return [_HEADER_START_ID, _ROLE_IDS["assistant"], _HEADER_END_ID]


def block_hashes(token_ids: Sequence[int], block_size: int) -> list[int]:
    """Return the content hash of each full block, each covering all tokens before it."""
    hashes: list[int] = []
    parent = 0
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hash((parent, *token_ids[end - block_size : end]))
        hashes.append(parent)
    return hashes
