"""What to do with a session's context while its tool runs: whatever wastes least memory.

InferCept (Abhyankar et al., ICML '24), as AugServe takes it over (section 4.3, Eqs. 4-8). With C
the context of the session, C_other that of the calls in flight beside it, T_int the time that its
tool takes, T_re(C) the time to compute the context again and T_swap(C) the time to move it one way,

    Preserve   T_int C                  it lies there while the tool runs                  (Eq. 4)
    Discard    T_re(C) (C + C_other)    all of them wait while it is computed anew         (Eq. 5)
    Swap       2 T_swap(C) C_other      the others wait while it is moved out and back     (Eq. 6)

in token x seconds; the least wins (Eqs. 7-8). The papers multiply by M, the bytes that a token
keeps in the KV cache. M is the same for all calls of one model and cancels, here and wherever calls
that can take the same seat are compared; figures of different models are brought together by
multiplying them with `ModelProfile.kv_bytes_per_token`.

Settled: Eq. 6 as AugServe prints it has N, the tokens of an iteration, where InferCept means the
batch that is resident; C_other it is. T_re(C) and T, the time of one iteration, are written alike
there and are two quantities. A context is kept where nothing else is better: ties go in the order
above.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Handling(StrEnum):
    """What becomes of a context while its tool runs."""

    PRESERVE = "preserve"
    """Its instance keeps it: the session goes back there, and room is kept for it."""
    DISCARD = "discard"
    """Nothing is done for it; what the engine happens to keep of it still helps."""
    SWAP = "swap"
    """Its instance moves it to its offload tier: the session goes back there."""


class Waste(NamedTuple):
    """Memory that each handling wastes, token x seconds; `None`: it cannot be had."""

    preserve: float
    discard: float
    swap: float | None


def waste(
    context_tokens: float,
    other_tokens: float,
    gap_s: float,
    *,
    recompute_s: float,
    swap_s: float | None,
) -> Waste:
    """Eqs. 4-6 without M.

    Args:
        context_tokens: C, at least 0.
        other_tokens: C_other, at least 0.
        gap_s: T_int, at least 0.
        recompute_s: T_re(C), at least 0.
        swap_s: T_swap(C), at least 0; `None`: the instance cannot swap it.

    Example:
        >>> waste(1_000.0, 20_000.0, 2.0, recompute_s=0.1, swap_s=0.02)
        Waste(preserve=2000.0, discard=2100.0, swap=800.0)
    """
    return Waste(
        preserve=gap_s * context_tokens,
        discard=recompute_s * (context_tokens + other_tokens),
        swap=None if swap_s is None else 2.0 * swap_s * other_tokens,
    )


def least_waste(wasted: Waste) -> Handling:
    """Eqs. 7-8; ties: Preserve, then Discard.

    Example:
        >>> least_waste(Waste(preserve=2000.0, discard=2100.0, swap=None))
        <Handling.PRESERVE: 'preserve'>
    """
    handling, least = Handling.PRESERVE, wasted.preserve
    if wasted.discard < least:
        handling, least = Handling.DISCARD, wasted.discard
    if wasted.swap is not None and wasted.swap < least:
        handling = Handling.SWAP
    return handling
