"""The file that `headway calibrate` writes: what engines were measured to take.

A file holds one engine or several; an engine of the configuration names it (`profile: FILE`) or
has the same keys in place (`profile: {prefill: ..., decode: ...}`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from dispatcher.config.section import Section
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.wording import plain

_FILE_BYTES_MAX = 1024 * 1024

Coefficient = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds, or seconds per token or call."""

Share = Annotated[float, Field(ge=0)]


class FitQuality(Section):
    """How well a fit meets what it was fitted to; errors are relative to what it predicts."""

    samples: int = Field(ge=0, description="measurements it was fitted to")
    relative_rms: Share = Field(description="root of the mean squared relative error")
    relative_p95: Share = Field(description="relative error that 95 % of them stay within")


class PrefillProfile(Section):
    """Time to the first token of a call that meets an idle engine."""

    per_token_s: Coefficient = Field(description="for each prompt token that is not cached")
    fixed_s: Coefficient = Field(description="for each call")
    fit: FitQuality | None = None


class DecodeProfile(Section):
    """Time per output token while calls run."""

    base_s: Coefficient = Field(description="for each iteration")
    per_running_s: Coefficient = Field(description="for each running call")
    per_kv_token_s: Coefficient = Field(description="for each token that the KV cache holds")
    fit: FitQuality | None = None

    @model_validator(mode="after")
    def _takes_time(self) -> DecodeProfile:
        if not self.base_s + self.per_running_s + self.per_kv_token_s > 0:
            raise ValueError("expected at least one coefficient above 0")
        return self


class AdmissionProfile(Section):
    """What a prompt adds to the iteration that it shares with running calls, and around it.

    An iteration that computes `u` prompt tokens of one call takes the decode time of all that
    run, that call included, and `per_prompt_token_s * u + fixed_s`. The call itself sees
    `request_s` more: HTTP, tokenizing, the way into and out of the engine.
    """

    per_prompt_token_s: Coefficient = Field(description="for each prompt token not cached")
    fixed_s: Coefficient = Field(description="for each call whose prompt is computed")
    request_s: Coefficient = Field(description="outside of the engine's iterations, once a call")
    fit: FitQuality | None = None


class MeasuredTimes(Section):
    """All that one load of an engine was measured to take."""

    prefill: PrefillProfile
    decode: DecodeProfile
    admission: AdmissionProfile | None = None

    @property
    def cost(self) -> CostProfile:
        """As the cost model starts from it."""
        return CostProfile(
            prefill_s_per_token=self.prefill.per_token_s,
            prefill_fixed_s=self.prefill.fixed_s,
            tpot_base_s=self.decode.base_s,
            tpot_per_running_s=self.decode.per_running_s,
            tpot_per_kv_token_s=self.decode.per_kv_token_s,
        )


class EngineProfile(MeasuredTimes):
    """One engine; only `prefill` and `decode` have to be given."""

    url: str | None = Field(default=None, description="where it was measured")
    model: str | None = Field(default=None, description="the model that was asked")
    vllm_version: str | None = Field(default=None, description="as the engine says")
    max_model_len: int | None = Field(default=None, ge=1, description="context, tokens")
    kv_capacity_tokens: int | None = Field(default=None, ge=1, description="KV cache, tokens")
    seats: int | None = Field(default=None, ge=1, description="calls that it runs at once")
    most_running: int | None = Field(
        default=None, ge=1, description="most calls that ran at once while it was measured"
    )
    loaded_with: tuple[str, ...] = Field(
        default=(), description="URLs of the engines that were loaded at the same time"
    )
    alone: MeasuredTimes | None = Field(
        default=None, description="the same while the other engines were idle"
    )


class ProfileFile(Section):
    """A whole file."""

    headway_profile: Literal[1] = Field(description="version of this form")
    engines: tuple[EngineProfile, ...] = Field(min_length=1)


def read_profile(path: Path, url: str | None = None) -> EngineProfile:
    """Read one engine's profile; where a file holds several, that of the engine at `url`.

    Raises:
        ConfigurationError: The file cannot be read, is no such file, or holds several engines and
            none at `url`. The message quotes keys, never values.
    """
    engines = read_profiles(path)
    if len(engines) == 1:
        return engines[0]
    for engine in engines:
        if engine.url == url:
            return engine
    known = ", ".join(str(engine.url) for engine in engines)
    raise ConfigurationError(f"{path}: holds no profile of {url}, only of {known}")


def read_profiles(path: Path) -> tuple[EngineProfile, ...]:
    """Read all profiles of a file.

    Raises:
        ConfigurationError: The file cannot be read, or is no such file.
    """
    try:
        if not path.is_file() or path.stat().st_size > _FILE_BYTES_MAX:
            raise ConfigurationError(f"{path}: not a file that `headway calibrate` wrote")
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {type(error).__name__}") from error
    except yaml.YAMLError:
        raise ConfigurationError(f"{path}: not YAML") from None
    if not isinstance(data, Mapping) or "headway_profile" not in data:
        raise ConfigurationError(
            f"{path}: expected what `headway calibrate` writes, with headway_profile at the top"
        )
    try:
        return ProfileFile.model_validate(data).engines
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_mistakes(error)}") from None


def written_profiles(engines: tuple[EngineProfile, ...]) -> str:
    """The file's text; `read_profiles` gives the same back.

    Numbers are rounded to five digits, more than any of them is worth.
    """
    data = ProfileFile(headway_profile=1, engines=engines).model_dump(
        mode="json", exclude_none=True
    )
    # whose times these are comes before the times
    data["engines"] = [_with_name_first(engine) for engine in data["engines"]]
    head = (
        "# What `headway calibrate` measured. Times are in seconds, as a client that streams sees\n"
        "# them: the engine and HTTP. fit: errors relative to the prediction (0.1 is 10 %).\n"
    )
    return head + yaml.safe_dump(_rounded(data), sort_keys=False, allow_unicode=True, width=100)


def _with_name_first(engine: dict[str, Any]) -> dict[str, Any]:
    times = MeasuredTimes.model_fields
    name = {key: value for key, value in engine.items() if key not in (*times, "alone")}
    return name | engine


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if item != []}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _mistakes(error: ValidationError) -> str:
    return "; ".join(
        ".".join(map(str, mistake["loc"])) + ": " + plain(mistake["msg"])
        for mistake in error.errors(include_url=False, include_input=False)
    )
