"""Every setting, its type, its default and what it means. All of it is frozen once read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dispatcher.core.gpu_profiles import (
    GpuProfile,
    ModelProfile,
    UnknownProfileError,
    gpu_profile,
    model_profile,
)
from dispatcher.core.types import CallClass

ENV_PREFIX = "HEADWAY_"
ENV_DELIMITER = "__"

Name = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")
]


def _known(lookup: Callable[[str], GpuProfile | ModelProfile], name: str) -> str:
    """The canonical name, or a `ValueError` that lists what is known."""
    try:
        return lookup(name).name
    except UnknownProfileError as error:
        raise ValueError(str(error)) from error


def _refuse_twins(section: str, key: str, values: list[str]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            shown = "a key" if key == "api_key" else repr(value)
            raise ValueError(f"{section}.{index}.{key}: {shown} is used twice; expected one each")


class Section(BaseModel):
    """A part of the settings: an unknown key is an error, and nothing changes afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ServerSettings(Section):
    """How clients reach the gateway."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(
        default=8080, ge=0, le=65535, description="port to listen on; 0 picks a free one"
    )
    max_body_mb: float = Field(
        default=64, gt=0, le=1024, description="largest request body, 10^6 bytes"
    )
    admin_token: str | None = Field(
        default=None,
        min_length=1,
        description="bearer token of the admin API; none: loopback clients only",
    )
    access_log: bool = Field(default=False, description="one line a request")
    shutdown_grace_s: float = Field(
        default=30, ge=0, description="how long calls may go on after SIGTERM, seconds"
    )


class TenantSettings(Section):
    """One client of the gateway, known by its key."""

    name: Name = Field(description="how metrics and explanations call it")
    api_key: str = Field(
        min_length=1, description="its key: `Authorization: Bearer` or `x-api-key`"
    )
    max_class: CallClass = Field(
        default=CallClass.LATENCY, description="the most urgent class it may ask for"
    )
    max_in_flight: int | None = Field(default=None, ge=1, description="calls it may have at once")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="prompt and output tokens"
    )
    weight: float = Field(default=1.0, gt=0, description="its share where policies share")
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

    max_calls: int = Field(default=10_000, ge=1, description="calls that may wait in all")
    max_wait_s: float = Field(default=600, gt=0, description="longest wait of one call, seconds")
    max_attempts: int = Field(
        default=3, ge=1, le=10, description="tries of one call before it fails"
    )


class EngineSettings(Section):
    """One vLLM engine."""

    id: Name = Field(description="how metrics and the admin API call it")
    url: str = Field(description="its base URL, without /v1")
    gpu: str | None = Field(default=None, description="GPU type the cost model starts from")
    tp: int = Field(default=1, ge=1, description="GPUs that share the model")
    size: str | None = Field(
        default=None, description="model shape (8b, 13b, 70b); none: read from the model's name"
    )
    seats: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        default="auto", description="calls in flight; auto: found by watching the engine"
    )
    engine_priority: Literal["auto"] | bool = Field(
        default="auto", description="send `priority`; auto: until the engine refuses it"
    )
    api_key: str | None = Field(
        default=None, min_length=1, description="key that the engine asks for"
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http(s)://host[:port]")
        return url.rstrip("/").removesuffix("/v1")

    @field_validator("gpu")
    @classmethod
    def _check_gpu(cls, gpu: str | None) -> str | None:
        return None if gpu is None else _known(gpu_profile, gpu)

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
    failures_until_down: int = Field(
        default=3, ge=1, description="failed looks that take an engine out"
    )
    stall_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="silence that ends a stream, or puts a busy engine to the test, seconds",
    )
    connect_timeout_s: float = Field(default=5.0, gt=0, description="for one connection, seconds")


class ModelSettings(Section):
    """Names of models."""

    aliases: Mapping[str, str] = Field(
        default={}, description="what clients ask for: what is served"
    )


class WorkflowSettings(Section):
    """What holds for the workflows of one application; `default` for all others."""

    slo_s: float | None = Field(default=None, gt=0, description="end-to-end SLO, seconds")
    idle_s: float | None = Field(
        default=None, gt=0, description="silence that ends a workflow, seconds"
    )


class StoreSettings(Section):
    """Where learned state is kept."""

    path: str | None = Field(
        default="headway.sqlite", min_length=1, description="SQLite file; null: off"
    )
    save_interval_s: float = Field(default=60, ge=1, description="between two saves, seconds")


class EmbeddedSettings(Section):
    """The emulated fleet that runs when no engine is configured."""

    time_scale: float = Field(default=2.0, gt=0, le=1000, description="times faster than real time")
    max_num_seqs: int = Field(default=8, ge=1, le=4096, description="seats an engine")
    size: str = Field(default="8b", description="model shape: 8b, 13b or 70b")
    seed: int = Field(default=0, description="seed of output lengths and texts")
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


DEFAULT_WORKFLOW = "default"
DEFAULT_SLO_S = 60.0
DEFAULT_IDLE_S = 300.0


class Settings(BaseSettings):
    """All of them. Environment variables `HEADWAY_<SECTION>__<KEY>` override the file."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_parse_none_str="null",
        validate_default=True,
    )

    server: ServerSettings = ServerSettings()
    tenants: tuple[TenantSettings, ...] = ()
    policy: PolicySettings = PolicySettings()
    queue: QueueSettings = QueueSettings()
    engines: tuple[EngineSettings, ...] = ()
    fleet: FleetSettings = FleetSettings()
    models: ModelSettings = ModelSettings()
    workflows: Mapping[str, WorkflowSettings] = Field(default={}, validate_default=False)
    store: StoreSettings = StoreSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over what the file says; no other source."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _unique(self) -> Settings:
        _refuse_twins("engines", "id", [engine.id for engine in self.engines])
        _refuse_twins("tenants", "name", [tenant.name for tenant in self.tenants])
        _refuse_twins("tenants", "api_key", [tenant.api_key for tenant in self.tenants])
        return self

    def workflow(self, application: str) -> tuple[float, float]:
        """SLO and idle time of an application's workflows, seconds."""
        own = self.workflows.get(application, WorkflowSettings())
        base = self.workflows.get(DEFAULT_WORKFLOW, WorkflowSettings())
        slo_s = own.slo_s or base.slo_s or DEFAULT_SLO_S
        return slo_s, own.idle_s or base.idle_s or DEFAULT_IDLE_S
