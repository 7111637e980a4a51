"""One engine: its settings, its connections, and what was last seen of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dispatcher.config import EngineSettings
from dispatcher.core.gpu_profiles import (
    MODELS,
    Capability,
    CostProfile,
    ModelDoesNotFitError,
    ModelProfile,
    gpu_profile,
    kv_capacity_tokens,
    model_profile,
    roofline_cost,
)
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.gateway.fleet.scrape import PrefixCache, Scrape
from dispatcher.gateway.upstream import EnginePool

_SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
_MODALITIES = frozenset({"image", "audio", "video"})


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine says it serves."""

    models: tuple[str, ...]
    max_model_len: int
    details: tuple[dict[str, object], ...] = ()
    """The engine's own model objects, for `/v1/models`."""


@dataclass(slots=True, eq=False)
class Engine:
    """Everything the gateway keeps of one engine."""

    settings: EngineSettings
    pool: EnginePool
    #: how many times faster than its GPU type it runs (emulated engines)
    time_scale: float = 1.0
    up: bool = False
    draining: bool = False
    removing: bool = False
    served: Served | None = None
    #: as it says itself: of its KV cache, and of one block of it
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int | None = None
    #: of its offload tier, as it says itself; 0: it has none
    offload_bytes: int = 0
    prefix_cache: PrefixCache | None = None
    sends_priority: bool = True
    #: looks that failed in a row
    failures: int = 0
    last_error: str = ""
    #: it said that the gateway's key is wrong
    refuses_key: bool = False
    #: it may have stopped computing, and has to prove that it has not
    suspect: bool = False
    #: its token count when it last grew, or when nothing was asked of it, and when that was
    tokens_total: int | None = None
    computing_s: float = 0.0
    #: when it last answered a call, or sent some of an answer
    heard_s: float = 0.0
    since_s: float = 0.0
    #: requests that take no seat (embeddings, tokenize)
    routed_in_flight: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    _on_loss: set[Callable[[], None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sends_priority = self.settings.engine_priority is not False
        self._take_key()

    def _take_key(self) -> None:
        key = self.settings.api_key
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def retune(self, settings: EngineSettings) -> None:
        """Take other settings, of the same id and URL; what was seen of the engine is kept."""
        if settings.engine_priority != self.settings.engine_priority:
            self.sends_priority = settings.engine_priority is not False
        self.settings = settings
        self._take_key()

    @property
    def takes_new(self) -> bool:
        """Up, and to be given work."""
        return self.up and not self.draining

    @property
    def busy(self) -> bool:
        """Whether it owes an answer."""
        return self.pool.open_connections > self.pool.idle_connections

    @contextlib.contextmanager
    def telling(self, lost: Callable[[], None]) -> Iterator[None]:
        """Within this context, `lost` is called, once, when the engine goes down."""
        self._on_loss.add(lost)
        try:
            yield
        finally:
            self._on_loss.discard(lost)

    def lost(self) -> None:
        """It went down: tell those who wait for it."""
        waiting, self._on_loss = self._on_loss, set()
        for tell in waiting:
            tell()

    def refuses_priority(self, status: int, refusal: bytes) -> bool:
        """Whether an error answer is about the `priority` field; then it is dropped for good."""
        if status not in (400, 422) or self.settings.engine_priority != "auto":
            return False
        if b"priority" not in refusal.lower():
            return False
        self.sends_priority = False
        return True

    def spec(self) -> InstanceSpec:
        """What the scheduler is told. The engine has been seen."""
        served = self.served
        if served is None:
            raise ValueError(f"engine {self.settings.id} has not been seen yet")
        seats = self.settings.seats
        return InstanceSpec(
            instance_id=InstanceId(self.settings.id),
            models=frozenset(served.models),
            max_model_len=served.max_model_len,
            gpu=self.settings.gpu,
            seats=None if seats == "auto" else seats,
            profile=self._profile(served),
            kv_capacity_tokens=self._kv_capacity(served),
            offload_tokens=self._offload_tokens(served),
            capability=self._capability(),
            weight_bytes=self._weight_bytes(served),
            kv_bytes_per_token=self._kv_bytes(served),
            # no engine says which it takes; what it cannot it refuses itself
            modalities=_MODALITIES,
            takes_priority=self.sends_priority,
        )

    def _size(self, served: Served) -> str:
        return self.settings.size or size_of(served.models)

    def _profile(self, served: Served) -> CostProfile | None:
        if self.settings.profile is not None:
            return self.settings.profile.cost
        if self.settings.gpu is None:
            return None
        shape = model_profile(self._size(served))
        cost = roofline_cost(gpu_profile(self.settings.gpu), shape, self.settings.tp)
        return cost.time_scale(self.time_scale)

    def _capability(self) -> Capability | None:
        """Of all its GPUs; `None` where nothing says what they are."""
        own = self.settings
        if own.capability is not None:
            figures = own.capability.figures
        elif own.gpu is not None:
            figures = gpu_profile(own.gpu).capability
        else:
            return None
        return figures.times(own.tp, self.time_scale)

    def _shape(self, served: Served) -> ModelProfile | None:
        """The model's published shape, where its size is told; guessed, it says nothing."""
        told = self.settings.size or told_size(served.models)
        return None if told is None else model_profile(told)

    def _weight_bytes(self, served: Served) -> int | None:
        if self.settings.weight_gb is not None:
            return round(self.settings.weight_gb * 1e9)
        shape = self._shape(served)
        return None if shape is None else shape.weight_bytes

    def _kv_bytes(self, served: Served) -> int | None:
        if self.settings.kv_bytes_per_token is not None:
            return self.settings.kv_bytes_per_token
        shape = self._shape(served)
        return None if shape is None else shape.kv_bytes_per_token

    def note(self, scrape: Scrape) -> bool:
        """Take in a look at it; whether that changes what the scheduler is told.

        A page without a word on the KV cache (cut, or from before the model was loaded) says
        nothing against what was known.
        """
        self.prefix_cache = scrape.prefix_cache
        self.kv_block_tokens = scrape.kv_block_tokens or self.kv_block_tokens
        before = (self.kv_capacity_tokens, self.offload_bytes)
        self.kv_capacity_tokens = scrape.kv_capacity_tokens or self.kv_capacity_tokens
        if scrape.offload_bytes is not None:
            self.offload_bytes = scrape.offload_bytes
        return before != (self.kv_capacity_tokens, self.offload_bytes)

    def _kv_capacity(self, served: Served) -> int | None:
        """As it says itself, else as it was measured, else what would fit."""
        profile = self.settings.profile
        measured = None if profile is None else profile.kv_capacity_tokens
        return self.kv_capacity_tokens or measured or self._kv_on_paper(served)

    def _offload_tokens(self, served: Served) -> int | None:
        """What fits into its offload tier, as configured, else as it says itself.

        `None` where it has no tier, or nothing tells the bytes of a token.
        """
        own_gib, kv_bytes = self.settings.offload_gib, self._kv_bytes(served)
        room = self.offload_bytes if own_gib is None else round(own_gib * 2**30)
        return None if kv_bytes is None else room // kv_bytes or None

    def _kv_on_paper(self, served: Served) -> int | None:
        if self.settings.gpu is None:
            return None
        try:
            return kv_capacity_tokens(
                gpu_profile(self.settings.gpu),
                model_profile(self._size(served)),
                self.settings.tp,
            )
        except ModelDoesNotFitError:
            return None


def size_of(models: tuple[str, ...]) -> str:
    """The known model shape nearest to the size in a model's name; 8b where none is told.

    Example:
        >>> size_of(("Qwen2.5-72B-Instruct",)), size_of(("llama",))
        ('70b', '8b')
    """
    return told_size(models) or "8b"


def told_size(models: tuple[str, ...]) -> str | None:
    """The known model shape nearest to the size in a model's name; `None` where none is told.

    Example:
        >>> told_size(("llama-2-13b-chat",)), told_size(("llama",))
        ('13b', None)
    """
    for name in models:
        found = _SIZE.search(name)
        if found is not None:
            billions = float(found[1])
            nearest = min(MODELS.values(), key=lambda m: abs(m.parameters / 1e9 - billions))
            return nearest.name
    return None
