"""An engine made for tools, as InferCept is: it decides itself what becomes of a context.

When an answer asks for a tool, its context is preserved, discarded or swapped to host memory,
whichever wastes least (AugServe, Eqs. 4-8), and not just left where it is until its room is needed.
AugServe's also changes the tokens of an iteration with the memory that is free (Eqs. 27-32). No
engine of today can be told either; what a gateway does instead is in `policies.context_handling`
and `policies.token_budget`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dispatcher.engine_model import EngineConfig
from dispatcher.simulator import Attempt, EnginePlayer
from policies.context_waste import Handling, Waste, least_waste, waste

BETA_LOW, BETA_HIGH = 0.25, 1.25
"""Of the limit of an iteration, over the usual one [settled: the paper gives none]."""
_TICK_S = 0.1


class ContextControl:
    """What one engine does with contexts; an `EngineControl`.

    Args:
        player: The engine.
        config: Of the engine, with `enable_preserve` and host memory.
        gaps_s: How long each tool usually takes.
        batch_tokens: Of an iteration: the reference of a limit that changes; `None`: none does.
    """

    def __init__(
        self,
        player: EnginePlayer,
        config: EngineConfig,
        gaps_s: Mapping[str, float],
        *,
        batch_tokens: int | None = None,
    ) -> None:
        self.tick_s = math.inf if batch_tokens is None else _TICK_S
        self._player = player
        self._config = config
        self._gaps_s = gaps_s
        self._batch_tokens = batch_tokens

    def ended(self, attempt: Attempt, tool: str | None, now_s: float) -> None:
        """Do what wastes least; what no tool was asked for is over."""
        player, hashes = self._player, attempt.block_hashes
        gap_s = None if tool is None else self._gaps_s.get(tool)
        handling = Handling.DISCARD
        if gap_s is not None:
            handling = least_waste(self.wasted(attempt.prompt_tokens + attempt.generated, gap_s))
        if handling is Handling.PRESERVE and attempt.session is not None:
            player.preserve(attempt.session, hashes, math.inf)
        elif handling is Handling.SWAP:
            player.offload(hashes)
        else:
            player.discard(hashes)

    def wasted(self, context_tokens: float, gap_s: float) -> Waste:
        """Memory that each handling wastes now, token x seconds."""
        resident = sum(request.computed for request in self._player.model.running)
        pairs = context_tokens * context_tokens / 2.0
        return waste(
            context_tokens,
            resident,
            gap_s,
            recompute_s=self._config.timing.iteration_s(
                1, int(context_tokens), context_tokens, pairs, 1
            ),
            swap_s=self._config.swap_s_per_token * context_tokens,
        )

    def tick(self, now_s: float) -> None:
        """Set the limit of the iterations to come by the memory that is free."""
        if self._batch_tokens is None:
            return
        model, config = self._player.model, self._config
        paused = model.preserved_blocks * config.block_size
        free = (1.0 - model.kv_usage) * config.kv_capacity_tokens + paused
        least, most = BETA_LOW * self._batch_tokens, BETA_HIGH * self._batch_tokens
        limit = int(min(max(free, least), most))
        self._player.set_token_limit(min(limit, config.max_num_batched_tokens))
