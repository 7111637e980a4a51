"""`headway bench`: what the commands write and show, and how they fail."""

import subprocess
import sys

import orjson
import pytest
from typer.testing import CliRunner

from dispatcher.bench import actions, plots
from dispatcher.bench.claims import Claim, Experiment, Findings
from dispatcher.bench.fleets import FLEETS
from dispatcher.bench.papers import PAPERS
from dispatcher.cli import app

SMALL = ("bench", "run", "--scenario", "chess-1", "--fleet", "A100,A6000", "--count", "4")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_run_writes_the_same_json_twice_and_shows_a_table(tmp_path):
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        done = invoke(
            *SMALL, "--policies", "vllm,hexgen-flow", "--rates", "0.3", "--seeds", "0,1",
            "--seats", "4", "--slo-scale", "3", "--jobs", "1", "--json", file,
        )  # fmt: skip
        assert done.exit_code == 0, done.output
    assert files[0].read_bytes() == files[1].read_bytes()
    found = orjson.loads(files[0].read_bytes())
    assert {"scenario", "fleet", "seeds", "results"} <= set(found)
    promised = (
        *("policy", "rate", "seed", "workflows", "latency_s", "slo_attainment", "slo_scale_at_95"),
        *("throughput_per_s", "goodput_per_s", "ttft_s", "tpot_s", "utilisation"),
    )
    assert set(promised) <= set(found["results"][0])
    assert "time alone on the fleet x 3" in done.output
    assert "Warm-up: predictors and templates have learned" in done.output
    assert "utilisation" in done.output
    assert "4 plays in" in done.output


def test_run_compares_seats():
    done = invoke(*SMALL, "--policies", "vllm", "--seeds", "0", "--seats", "2,4", "--jobs", "1")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if line.strip().startswith("vllm")]
    assert [row[2] for row in rows] == ["2", "4"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fleet", "B200x4"), "unknown GPU 'B200'"),
        (("--scenario", "chess-9"), "no such scenario: 'chess-9'"),
        (("--policies", "vllm,magic"), "magic"),
        (("--policies", "vllm:alpha=1"), "no such parameter"),
        (("--rates", "fast"), "--rates: expected different numbers"),
        (("--rates", "0"), "rate: expected workflows per second above 0"),
        (("--seeds", "0,0"), "--seeds: expected different numbers"),
        (("--seats", "0"), "at least 1 seat"),
        (("--size", "9b"), "unknown model size"),
        (("--tenants", "a=1,b"), "--tenants: expected NAME=SLO_SCALE, found 'b'"),
        (("--trace", "no-such-file"), "and not both"),
        (("--warm-trace", "no-such-file"), "a trace to learn from goes with a trace"),
    ],
)
def test_run_says_what_is_wrong(arguments, said):
    done = invoke(*SMALL, "--jobs", "1", "--seeds", "0", *arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("where", "said"), [("no/such.json", "no such"), (".", "is a directory")])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_played(tmp_path, where, said):
    for command in (SMALL, ("bench", "paper", "hexgen-flow")):
        done = invoke(*command, "--json", tmp_path / where)
        assert done.exit_code == 2
        assert said in done.output
        assert "plays" not in done.output


def test_a_trace_that_is_not_there_is_told():
    done = invoke("bench", "run", "--trace", "no-such-file", "--jobs", "1")
    assert done.exit_code == 2
    assert "no-such-file" in done.output


def test_pictures_without_matplotlib_are_refused_before_anything_is_played(monkeypatch, tmp_path):
    def missing():
        raise plots.PlotsMissingError("plots need matplotlib: pip install it")

    monkeypatch.setattr(plots, "require", missing)
    done = invoke(*SMALL, "--out", tmp_path, "--jobs", "1")
    assert done.exit_code == 2
    assert "pip install" in done.output
    assert "plays" not in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "http://127.0.0.1:9"), "http://127.0.0.1:9 does not answer"),
        (("--target", "http://x", "--time-scale", "0"), "--time-scale: expected more than 0"),
        (("--target", "http://x", "--fleet", "none"), "no such fleet: 'none'"),
    ],
)
def test_live_says_what_is_wrong(arguments, said):
    done = invoke("bench", "live", "--scenario", "chess-1", "--count", "2", *arguments)
    assert done.exit_code == 2
    assert said in done.output


def _experiment(options):
    options.on_steps(2)
    options.on_step()
    options.on_step()
    return Findings([Claim("c", "faster", "here", "x", 1.2, float(len(options.seeds)))])


def test_paper_writes_claims_beside_measurements(monkeypatch, tmp_path):
    some = Experiment("some", "Some paper", _experiment, lambda document, folder: [])
    monkeypatch.setattr(actions, "PAPERS", {"some": lambda: some})
    file = tmp_path / "paper.json"
    done = invoke("bench", "paper", "some", "--seeds", "4,5", "--json", file)
    assert done.exit_code == 0, done.output
    found = orjson.loads(file.read_bytes())
    assert found["claims"][0]["measured"] == 2.0
    assert found["claims"][0]["met"] is True
    assert (found["paper"], found["seeds"]) == ("some", [4, 5])
    assert "faster" in done.output
    assert "2/2 plays" in done.output
    unknown = invoke("bench", "paper", "other")
    assert unknown.exit_code == 2
    assert "expected one of: some" in unknown.output


def test_other_commands_do_not_load_the_simulator():
    code = "import sys, dispatcher.cli; sys.exit('dispatcher.bench.run' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_names_every_fleet():
    shown = invoke("bench", "run", "--help").output
    assert all(name in shown for name in FLEETS)


def test_the_help_and_the_error_of_an_unknown_name_name_every_paper():
    shown = invoke("bench", "paper", "--help").output
    unknown = invoke("bench", "paper", "no-such").output
    for name, experiment in PAPERS.items():
        assert name in shown
        assert name in unknown
        assert experiment().paper == name
