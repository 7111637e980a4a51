"""The written file, and the configuration that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.config import EngineProfile, EngineSettings, load_settings, read_profile
from dispatcher.config.profiles import read_profiles, written_profiles
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.gateway.fleet.engine import Engine, Served
from dispatcher.gateway.upstream import EnginePool

TIMES: dict[str, Any] = {
    "prefill": {
        "per_token_s": 4e-5,
        "fixed_s": 0.01,
        "fit": {"samples": 15, "relative_rms": 0.03, "relative_p95": 0.05},
    },
    "decode": {"base_s": 0.02, "per_running_s": 1e-4, "per_kv_token_s": 2e-8},
}
COST = CostProfile(4e-5, 0.01, 0.02, 1e-4, 2e-8)


def profile(**more: Any) -> EngineProfile:
    return EngineProfile.model_validate({**TIMES, **more})


def written(directory: Path, *profiles: EngineProfile) -> Path:
    path = directory / "profile.yaml"
    path.write_text(written_profiles(profiles))
    return path


def configured(directory: Path, engine: dict[str, Any]) -> Path:
    path = directory / "headway.yaml"
    path.write_text(yaml.safe_dump({"engines": [{"id": "a", "url": "http://a:1", **engine}]}))
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    whole = profile(
        url="http://a:1",
        model="tiny",
        vllm_version="0.32.0",
        max_model_len=2048,
        kv_capacity_tokens=100_000,
        seats=4,
        most_running=4,
        loaded_with=["http://b:1"],
        admission={"per_prompt_token_s": 3e-5, "fixed_s": 0.001, "request_s": 0.005},
        alone=TIMES,
    )
    path = written(tmp_path, whole)
    assert read_profile(path) == whole
    # a person looks for whose it is first
    assert list(yaml.safe_load(path.read_text())["engines"][0])[:2] == ["url", "model"]


def test_numbers_are_rounded_to_what_they_are_worth(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        profile(decode={"base_s": 0.012345678, "per_running_s": 1 / 3e6, "per_kv_token_s": 0}),
    )
    decode = read_profile(path).decode
    assert (decode.base_s, decode.per_running_s) == (0.012346, 3.3333e-07)


@pytest.mark.parametrize("in_place", [True, False])
def test_an_engine_starts_from_its_profile(tmp_path: Path, in_place: bool) -> None:
    own: object = TIMES if in_place else str(written(tmp_path, profile(url="http://elsewhere:1")))
    settings = load_settings(configured(tmp_path, {"profile": own, "gpu": "A100"})).engines[0]
    pool = EnginePool(settings.url, connect_timeout_s=1, head_timeout_s=None)
    engine = Engine(settings, pool, served=Served(("tiny",), 2048))
    assert engine.spec().profile == COST


def test_of_several_engines_the_one_of_this_url_is_taken(tmp_path: Path) -> None:
    slow = {"base_s": 0.5, "per_running_s": 0, "per_kv_token_s": 0}
    path = written(
        tmp_path, profile(url="http://b:1", decode=slow), profile(url="http://a:1", seats=7)
    )
    found = load_settings(configured(tmp_path, {"profile": str(path)})).engines[0].profile
    assert found is not None
    assert found.seats == 7
    with pytest.raises(ConfigurationError) as error:
        load_settings(configured(tmp_path, {"url": "http://c:1/v1", "profile": str(path)}))
    assert "engines.0.profile" in str(error.value)
    assert "holds no profile of http://c:1, only of http://b:1, http://a:1" in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "not a file that `headway calibrate` wrote"),
        ("secret: [", "not YAML"),
        ("- secret", "with headway_profile at the top"),
        ("secret: 1", "with headway_profile at the top"),
        ("headway_profile: 2\nengines: []", "headway_profile: expected 1"),
        ("headway_profile: 1\nengines: []", "engines: expected a list to have at least 1 item"),
        ("headway_profile: 1\nengines: [{prefill: {per_token_s: x}}]", "engines.0.decode: missing"),
        ("\x00", "not YAML"),
        (b"\xff\xfe\x00secret", "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(
    tmp_path: Path, text: str | bytes | None, expected: str
) -> None:
    path = tmp_path / "profile.yaml"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigurationError) as error:
        load_settings(configured(tmp_path, {"profile": str(path)}))
    message = str(error.value)
    assert "engines.0.profile" in message
    assert expected in message
    assert "secret" not in message


def test_a_directory_and_a_long_file_are_refused(tmp_path: Path) -> None:
    long = tmp_path / "long.yaml"
    long.write_bytes(b" " * (1024 * 1024 + 1))
    for path in (tmp_path, long):
        with pytest.raises(ConfigurationError, match="not a file that"):
            read_profiles(path)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (5, "engines.0.profile: expected the path of a file"),
        ({"prefill": TIMES["prefill"]}, "engines.0.profile.decode: missing"),
        ({**TIMES, "seat": 4}, "engines.0.profile.seat: unknown key; expected one of prefill,"),
        (
            {**TIMES, "decode": {**TIMES["decode"], "base": 1}},
            "engines.0.profile.decode.base: unknown key; expected one of base_s, per_running_s,",
        ),
        (
            {**TIMES, "decode": {**TIMES["decode"], "base_s": -1}},
            "engines.0.profile.decode.base_s: expected a number greater than or equal to 0",
        ),
        (
            {**TIMES, "decode": dict.fromkeys(TIMES["decode"], 0)},
            "engines.0.profile.decode: expected at least one coefficient above 0",
        ),
    ],
)
def test_a_mistake_in_place_names_its_key(tmp_path: Path, own: object, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_settings(configured(tmp_path, {"profile": own}))
    assert expected in str(error.value)


def test_settings_made_in_code_may_hold_one() -> None:
    own = profile()
    settings = EngineSettings(id="a", url="http://a:1", profile=own)
    assert settings.profile == own
    assert EngineSettings(id="a", url="http://a:1").profile is None
