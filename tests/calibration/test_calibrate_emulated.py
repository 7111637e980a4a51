"""The command against emulated engines: what it finds, what it leaves behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from calibration_harness import SLOW_GPU, emulated, headway, nothing_in, running_in, until

from dispatcher.calibration.client import EngineClient
from dispatcher.config import load_settings, read_profile
from dispatcher.config.profiles import EngineProfile, MeasuredTimes, read_profiles
from dispatcher.emulator import EmulatorSettings

QUICK = ("--budget-s", "9", "--rounds", "1", "--longest-prompt", "1000")


def plausible(times: MeasuredTimes) -> None:
    """Coefficients above 0, and times of the order of what is played: this machine is busy."""
    assert times.prefill.per_token_s > 0
    timing = EmulatorSettings.model_validate(SLOW_GPU).engine_config().timing
    played_s = timing.iteration_s(2, 2, 1000, 1000) / SLOW_GPU["time_scale"]
    assert 0.3 * played_s < times.cost.tpot_s(2, 1000) < 10 * played_s
    assert times.prefill.fit is not None and times.decode.fit is not None
    assert times.prefill.fit.samples >= 5
    assert times.decode.fit.samples >= 3


async def test_one_engine_is_measured_and_described(tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    async with emulated({"max_num_seqs": 3}) as [url]:
        result = await headway("--engine", url, "--out", str(out), *QUICK)
        assert result.exit_code == 0, result.output
        assert await running_in(url) == 0
        assert await cached_tokens(url) == 0
    profile = read_profile(out)
    plausible(profile)
    assert (profile.url, profile.model, profile.max_model_len) == (url, "tiny", 2048)
    assert (profile.seats, profile.most_running) == (3, 3)
    assert profile.vllm_version
    assert profile.kv_capacity_tokens
    assert profile.admission is not None
    assert profile.alone is None
    assert f"tiny at {url}, seats: 3" in result.output
    assert "±" in result.output
    config = tmp_path / "headway.yaml"
    config.write_text(f"engines: [{{id: a, url: '{url}', profile: '{out}'}}]\n")
    assert load_settings(config).engines[0].profile == profile


async def test_engines_are_loaded_together_after_each_alone(tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    async with emulated({"max_num_seqs": 2}, {"max_num_seqs": 2}) as urls:
        engines = [option for url in urls for option in ("--engine", url)]
        options = ("--budget-s", "16", "--rounds", "1", "--longest-prompt", "400", "--seats", "2")
        result = await headway(*engines, "--out", str(out), *options)
        assert result.exit_code == 0, result.output
        assert [await running_in(url) for url in urls] == [0, 0]
    profiles: tuple[EngineProfile, ...] = read_profiles(out)
    assert [profile.url for profile in profiles] == urls
    for profile in profiles:
        plausible(profile)
        assert profile.alone is not None
        plausible(profile.alone)
        assert profile.loaded_with == tuple(url for url in urls if url != profile.url)


async def test_apart_never_loads_two_at_once(tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    async with emulated({"max_num_seqs": 1}, {"max_num_seqs": 1}) as urls:
        engines = [option for url in urls for option in ("--engine", url)]
        result = await headway(*engines, "--apart", "--out", str(out), *QUICK)
        assert result.exit_code == 0, result.output
    for profile in read_profiles(out):
        assert profile.alone is None
        assert profile.loaded_with == ()
        # nobody else runs beside the only seat
        assert profile.seats == 1
        assert profile.admission is None


async def test_no_prompt_begins_as_another_one() -> None:
    """Not even as one of an earlier calibration, which the engine may still remember."""
    async with EngineClient("http://x") as first, EngineClient("http://x") as second:
        prompts = [client.prompt(500) for client in (first, second) for _ in range(50)]
    assert len({prompt.split(maxsplit=1)[0] for prompt in prompts}) == 100


async def cached_tokens(url: str) -> float:
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{url}/metrics")).text
    found = [x for x in page.splitlines() if x.startswith("vllm:prompt_tokens_cached_total")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What is started can be interrupted, also where a shell in the background started the tests.

    Such a shell has SIGINT ignored, which programs hand down.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
async def test_an_interrupted_one_leaves_no_call_behind(tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    async with emulated({"time_scale": 0.5}) as [url]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dispatcher.cli", "calibrate", "--engine", url),
            *("--out", str(out)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

        async def busy() -> bool:
            return await running_in(url) > 0

        async def idle() -> bool:
            return await running_in(url) == 0

        await until(busy)
        process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()
        assert process.returncode == 130
        assert "Interrupted: nothing was written" in output.decode()
        await until(idle)
    assert nothing_in(tmp_path)
