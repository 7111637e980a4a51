"""One request inside an engine."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class RequestState(Enum):
    """Where a request is; preempted ones wait again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class EngineRequest:
    """A request and what the engine keeps about it.

    The caller sets the first group; the engine owns the rest, which others may read.

    Attributes:
        request_id: Unique among the engine's live requests.
        prompt_tokens: Prompt length, at least 1.
        output_tokens: How many tokens will be generated, at least 1. The truth: no scheduler
            outside may look at it.
        priority: Lower first; counts under the priority policy only.
        arrival_s: When it reached the engine, in the engine's virtual time.
        block_hashes: Content hash of each full block of prompt and output, each covering all
            blocks before it. May be shorter: later blocks are then never shared.
        session: Whose preserved blocks it takes over once it gets a seat; None: nobody's.
        state: Where it is.
        sequence: Order of addition, breaks ties.
        computed: Tokens whose KV is in the cache.
        generated: Tokens generated so far.
        blocks: KV blocks it holds, shared ones included.
        shared: Hashes of the blocks it holds by content, in order.
        cached_tokens: Prompt tokens the prefix cache spared on first admission; -1 before it.
        preemptions: Times it lost its blocks.
        lost: Most tokens it had computed when it lost its blocks.
        resumed: Tokens it did not have to compute again when it last came back.
        scheduled_s: Start of the iteration that first admitted it; None before.
    """

    __slots__ = (
        "arrival_s",
        "block_hashes",
        "blocks",
        "cached_tokens",
        "computed",
        "generated",
        "lost",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "request_id",
        "resumed",
        "scheduled_s",
        "sequence",
        "session",
        "shared",
        "state",
    )

    def __init__(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float,
        priority: int = 0,
        block_hashes: Sequence[int] = (),
        session: str | None = None,
    ) -> None:
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(
                f"request {request_id}: prompt_tokens and output_tokens must be at least 1,"
                f" not {prompt_tokens} and {output_tokens}"
            )
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.arrival_s = arrival_s
        self.block_hashes = block_hashes
        self.session = session
        self.state = RequestState.WAITING
        self.sequence = -1
        self.computed = 0
        self.generated = 0
        self.blocks = 0
        self.shared: list[int] = []
        self.cached_tokens = -1
        self.preemptions = 0
        self.lost = 0
        self.resumed = 0
        self.scheduled_s: float | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and generated tokens so far."""
        return self.prompt_tokens + self.generated

    def __repr__(self) -> str:
        return (
            f"EngineRequest({self.request_id!r}, {self.state.value}, prompt={self.prompt_tokens},"
            f" generated={self.generated}/{self.output_tokens}, computed={self.computed},"
            f" blocks={self.blocks})"
        )
