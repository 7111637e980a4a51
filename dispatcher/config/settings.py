"""Every setting, its type, its default and what it means. All of it is frozen once read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.config.capability import CapabilitySettings
from dispatcher.config.predictors import PredictorSettings
from dispatcher.config.profiles import EngineProfile, read_profile
from dispatcher.config.section import Section
from dispatcher.config.slo import SloSettings
from dispatcher.config.stages import StageSettings
from dispatcher.config.tuning import RecordingSettings, TuningSettings
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.gpu_profiles import (
    GpuProfile,
    ModelProfile,
    UnknownProfileError,
    gpu_profile,
    model_profile,
)
from dispatcher.core.types import CallClass
from dispatcher.engine_model.config import EngineConfig
from workflows.declarations import MAX_DECLARED_STAGES, check_stages

Name = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")
]

SECONDS_MAX = 1e7
"""Longest time that a setting may name (four months)."""

COUNT_MAX = 1_000_000_000
"""Largest number that a setting may name."""

CENTRAL = "central"
"""How metrics call the queue of calls that wait for any engine; no engine may be called so."""

Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
Count = Annotated[int, Field(ge=1, le=COUNT_MAX)]


def _printable(text: str) -> str:
    """What can stand in a header or a URL as it is."""
    if not all("!" <= letter <= "~" for letter in text):
        raise ValueError("expected printable ASCII characters without blanks")
    return text


Printable = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]


def _encodable(text: str) -> str:
    """Without halves of surrogate pairs, which YAML's escapes allow and no JSON can hold."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("expected a text that UTF-8 can hold")
    return text


Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_encodable)]


def _known(lookup: Callable[[str], GpuProfile | ModelProfile], name: str) -> str:
    """The canonical name, or a `ValueError` that lists what is known."""
    try:
        return lookup(name).name
    except UnknownProfileError as error:
        raise ValueError(str(error)) from error


def _refuse_twins(section: str, key: str, values: list[str]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise PydanticCustomError(
                "twin",
                "is used by {section}.{first} already; expected one each",
                {"section": section, "first": values.index(value), "at": (section, index, key)},
            )


class ServerSettings(Section):
    """How clients reach the gateway."""

    host: Printable = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8080, ge=0, le=65535, description="port to listen on; 0 picks a free one"
    )
    max_body_mb: float = Field(
        default=64, ge=0.001, le=1024, description="largest request body, 10^6 bytes"
    )
    admin_token: Printable | None = Field(
        default=None,
        repr=False,
        description="bearer token of the admin API; none: loopback clients only",
    )
    access_log: bool = Field(default=False, description="one line a request")
    shutdown_grace_s: float = Field(
        default=30,
        ge=0,
        le=SECONDS_MAX,
        description="how long calls may go on after SIGTERM, seconds",
    )


class TenantSettings(Section):
    """One client of the gateway, known by its key."""

    name: Name = Field(description="how metrics and explanations call it")
    api_key: Printable = Field(
        repr=False, description="its key: `Authorization: Bearer` or `x-api-key`"
    )
    max_class: CallClass = Field(
        default=CallClass.LATENCY, description="the most urgent class it may ask for"
    )
    max_in_flight: Count | None = Field(default=None, description="calls it may have at once")
    tokens_per_minute: Count | None = Field(default=None, description="prompt and output tokens")
    weight: float = Field(
        default=1.0, ge=1e-6, le=1e6, description="its share where policies share"
    )
    reject_late: bool = Field(
        default=False,
        description="answer 408 once a workflow's deadline is gone instead of running on",
    )


class PolicySettings(Section):
    """What decides."""

    name: Name = Field(default="hexgen-flow", description="a name from `headway policies`")
    params: Mapping[str, object] = Field(default={"alpha": "auto"}, description="its parameters")

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, data: object) -> object:
        """Another policy starts from its own defaults, not from those of the default one."""
        if isinstance(data, Mapping) and "params" not in data and "name" in data:
            return {**data, "params": {}}
        return data


class QueueSettings(Section):
    """What may wait."""

    max_calls: Count = Field(default=10_000, description="calls that may wait in all")
    max_wait_s: Seconds = Field(default=600, description="longest wait of one call, seconds")
    max_attempts: int = Field(
        default=3, ge=1, le=10, description="tries of one call before it fails"
    )


class EngineSettings(Section):
    """One vLLM engine."""

    id: Name = Field(description="how metrics and the admin API call it")
    url: str = Field(description="its base URL, without /v1")
    gpu: str | None = Field(default=None, description="GPU type the cost model starts from")
    tp: int = Field(default=1, ge=1, le=1024, description="GPUs that share the model")
    size: str | None = Field(
        default=None, description="model shape (8b, 13b, 70b); none: read from the model's name"
    )
    profile: EngineProfile | None = Field(
        default=None,
        description="what `headway calibrate` measured, a file or its keys; wins over `gpu`",
    )
    capability: CapabilitySettings | None = Field(
        default=None, description="figures of one of its GPUs; win over those of `gpu`"
    )
    weight_gb: float | None = Field(
        default=None, gt=0, le=1e6, description="weights of its model, 10^9 bytes; none: by size"
    )
    kv_bytes_per_token: Count | None = Field(
        default=None, description="KV cache of one token, bytes; none: by size"
    )
    offload_gib: float | None = Field(
        default=None, ge=0, le=1e6, description="KV cache in host memory, GiB; none: as it says"
    )
    seats: Literal["auto"] | int = Field(
        default="auto", description="calls in flight; auto: found by watching the engine"
    )
    engine_priority: Literal["auto"] | bool = Field(
        default="auto", description="send `priority`; auto: until the engine refuses it"
    )
    api_key: Printable | None = Field(
        default=None, repr=False, description="key that the engine asks for"
    )

    @field_validator("id")
    @classmethod
    def _check_id(cls, name: str) -> str:
        if name == CENTRAL:
            raise ValueError("expected another name; metrics call the calls of no engine so")
        return name

    @field_validator("offload_gib")
    @classmethod
    def _check_offload(cls, gib: float | None, info: ValidationInfo) -> float | None:
        # a size or a figure that is wrong itself is told of, and is missing here
        told = [info.data.get(key, True) for key in ("size", "kv_bytes_per_token")]
        if gib and not any(told):
            raise ValueError("expected kv_bytes_per_token or size with it: how large a token is")
        return gib

    # one message rather than one for each branch of the type
    @field_validator("seats", mode="before")
    @classmethod
    def _check_seats(cls, seats: object) -> object:
        number = isinstance(seats, int) and not isinstance(seats, bool) and 1 <= seats <= COUNT_MAX
        if seats != "auto" and not number:
            raise ValueError(f"expected auto, or a whole number from 1 to {COUNT_MAX}")
        return seats

    @field_validator("engine_priority", mode="before")
    @classmethod
    def _check_engine_priority(cls, sends: object) -> object:
        if sends != "auto" and not isinstance(sends, bool):
            raise ValueError("expected auto, true or false")
        return sends

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if "@" in url:
            raise ValueError("expected no user or password in the URL; use api_key")
        _printable(url)  # before it is taken apart, which drops line ends in silence
        try:
            parts = urlsplit(url)
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # no port, or no IPv6 address
            right = False
        if not right:
            raise ValueError("expected http(s)://host[:port] with a port from 1 to 65535")
        if "?" in url or "#" in url:
            raise ValueError("expected no query or fragment in the URL")
        return url.rstrip("/").removesuffix("/v1")

    @field_validator("gpu")
    @classmethod
    def _check_gpu(cls, gpu: str | None) -> str | None:
        return None if gpu is None else _known(gpu_profile, gpu)

    @field_validator("profile", mode="before")
    @classmethod
    def _read_profile(cls, profile: object, info: ValidationInfo) -> object:
        if profile is None or isinstance(profile, EngineProfile | Mapping):
            return profile
        if not isinstance(profile, str):
            raise ValueError("expected the path of a file that `headway calibrate` wrote, or keys")
        try:
            return read_profile(Path(profile), info.data.get("url"))
        except ConfigurationError as error:
            raise ValueError(str(error)) from error

    @field_validator("size")
    @classmethod
    def _check_size(cls, size: str | None) -> str | None:
        return None if size is None else _known(model_profile, size)


class FleetSettings(Section):
    """How engines are watched."""

    poll_interval_s: float = Field(
        default=1.0, ge=0.05, le=60, description="between two looks, seconds"
    )
    poll_timeout_s: float = Field(default=2.0, gt=0, le=60, description="for one look, seconds")
    failures_until_down: Count = Field(
        default=3, description="failed looks that take an engine out"
    )
    stall_timeout_s: Seconds = Field(
        default=120.0,
        description="silence that ends a stream, or puts a busy engine to the test, seconds",
    )
    connect_timeout_s: float = Field(
        default=5.0, gt=0, le=600, description="for one connection, seconds"
    )


class ModelSettings(Section):
    """Names of models."""

    aliases: Mapping[Text, Text] = Field(
        default={}, description="what clients ask for: what is served"
    )


class WorkflowSettings(Section):
    """What holds for the workflows of one application; `default` for all others."""

    slo_s: Seconds | None = Field(default=None, description="end-to-end SLO, seconds")
    idle_s: Seconds | None = Field(
        default=None, description="silence that ends a workflow, seconds"
    )
    stages: tuple[StageSettings, ...] = Field(
        default=(), max_length=MAX_DECLARED_STAGES, description="what it is made of"
    )

    @field_validator("stages")
    @classmethod
    def _check_stages(cls, stages: tuple[StageSettings, ...]) -> tuple[StageSettings, ...]:
        check_stages(tuple(stage.plan() for stage in stages))
        return stages


class StoreSettings(Section):
    """Where learned state is kept."""

    path: Text | None = Field(
        default="headway.sqlite",
        pattern=r"^[^\x00]+$",
        description="SQLite file; null: off",
    )
    save_interval_s: float = Field(
        default=60, ge=1, le=SECONDS_MAX, description="between two saves, seconds"
    )


class EmbeddedSettings(Section):
    """The emulated fleet that runs when no engine is configured."""

    time_scale: float = Field(
        default=2.0, ge=0.01, le=1000, description="times faster than real time"
    )
    max_num_seqs: int = Field(default=8, ge=1, le=4096, description="seats an engine")
    size: str = Field(default="8b", description="model shape: 8b, 13b or 70b")
    seed: int = Field(default=0, ge=0, le=COUNT_MAX, description="seed of output lengths and texts")
    gpus: tuple[str, ...] = Field(
        default=("A100", "A100", "L40", "A6000"),
        min_length=1,
        max_length=64,
        description="one engine each",
    )

    @field_validator("size")
    @classmethod
    def _check_size(cls, size: str) -> str:
        return _known(model_profile, size)

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_known(gpu_profile, gpu) for gpu in gpus)

    @model_validator(mode="after")
    def _fits(self) -> EmbeddedSettings:
        for gpu in self.gpus:
            try:
                EngineConfig.sized(
                    gpu_profile(gpu), model_profile(self.size), max_num_seqs=self.max_num_seqs
                )
            except ConfigurationError as error:
                raise ValueError(str(error)) from error
        return self


DEFAULT_WORKFLOW = "default"
DEFAULT_SLO_S = 60.0
DEFAULT_IDLE_S = 300.0


class Settings(Section):
    """All of them, by section."""

    server: ServerSettings = ServerSettings()
    tenants: tuple[TenantSettings, ...] = ()
    policy: PolicySettings = PolicySettings()
    queue: QueueSettings = QueueSettings()
    engines: tuple[EngineSettings, ...] = ()
    fleet: FleetSettings = FleetSettings()
    models: ModelSettings = ModelSettings()
    workflows: Mapping[str, WorkflowSettings] = Field(default={}, validate_default=False)
    slo: SloSettings = SloSettings()
    predictors: PredictorSettings = PredictorSettings()
    store: StoreSettings = StoreSettings()
    tuning: TuningSettings = TuningSettings()
    recording: RecordingSettings = RecordingSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()

    @model_validator(mode="after")
    def _unique(self) -> Settings:
        _refuse_twins("engines", "id", [engine.id for engine in self.engines])
        _refuse_twins("tenants", "name", [tenant.name for tenant in self.tenants])
        _refuse_twins("tenants", "api_key", [tenant.api_key for tenant in self.tenants])
        if DEFAULT_WORKFLOW in self.workflows and self.workflows[DEFAULT_WORKFLOW].stages:
            raise ValueError("workflows.default: stages are those of one application")
        return self

    def workflow(self, application: str) -> tuple[float, float]:
        """SLO and idle time of an application's workflows, seconds."""
        own = self.workflows.get(application, WorkflowSettings())
        base = self.workflows.get(DEFAULT_WORKFLOW, WorkflowSettings())
        slo_s = own.slo_s or base.slo_s or DEFAULT_SLO_S
        return slo_s, own.idle_s or base.idle_s or DEFAULT_IDLE_S
