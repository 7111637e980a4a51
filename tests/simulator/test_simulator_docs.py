"""docs/simulator.md: its examples run."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from dispatcher.config.profiles import (
    DecodeProfile,
    EngineProfile,
    PrefillProfile,
    written_profiles,
)

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_a_trace_is_played_with_the_faults_that_are_shown() -> None:
    play, faults = EXAMPLES[0], EXAMPLES[3]
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(play, names)
    exec(faults, names)
    latency_s = float(said.getvalue())
    again = "played = simulate(trace, fleet, policy='hexgen-flow', faults=faults).played\n"
    exec(again + "slowest = max(w.latency_s for w in played.workflows)", names)
    slowest_s = names["slowest"]
    assert isinstance(slowest_s, float)
    assert 0.0 < latency_s < slowest_s


def test_measured_engines_come_from_the_file(tmp_path: Path) -> None:
    profile = EngineProfile(
        url="http://127.0.0.1:8000",
        prefill=PrefillProfile(per_token_s=1e-4, fixed_s=0.05),
        decode=DecodeProfile(base_s=0.01, per_running_s=1e-3, per_kv_token_s=0.0),
        max_model_len=2048,
    )
    (tmp_path / "engine-profile.yaml").write_text(written_profiles((profile,)))
    names: dict[str, object] = {}
    with contextlib.chdir(tmp_path):
        exec(EXAMPLES[1], names)
    fleet = names["fleet"]
    assert isinstance(fleet, list)
    assert [engine.instance_id for engine in fleet] == [profile.url]


def test_the_engine_that_keeps_contexts_finds_more_than_one_that_does_not() -> None:
    begin, control = EXAMPLES[0].partition("fleet =")[0], EXAMPLES[2]
    hits = []
    for text in (control, control.replace("control=KeepsContexts", "control=None")):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(begin + text, {})
        hits.append(int(said.getvalue().split()[0]))
    assert hits[0] > hits[1] > 0
