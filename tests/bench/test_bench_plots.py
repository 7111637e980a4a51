"""Pictures, where matplotlib is there; a clear message where it is not."""

import builtins

import pytest

from dispatcher.bench import plots
from dispatcher.bench.fleets import fleet_named
from dispatcher.bench.paper_pictures import grouped_bars
from dispatcher.bench.policies import policies_named
from dispatcher.bench.run import Comparison, document, results_of
from dispatcher.bench.work import Work


def ran(seats=(2, 4)):
    one = Comparison(
        Work(scenario="chess-1", count=3),
        tuple(fleet_named("A100,A6000", seats=each) for each in seats),
        tuple(policies_named("vllm,hexgen-flow")),
        (0.3,),
        (0,),
        warm=False,
    )
    return document(one, results_of(one.settings(), jobs=1))


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(plots.PlotsMissingError, match="pip install 'matplotlib>="):
        plots.require()


@pytest.mark.filterwarnings("default")
def test_a_run_is_drawn_the_same_twice(tmp_path):
    pytest.importorskip("matplotlib")
    found = ran()
    made = [plots.draw_run(found, tmp_path / name) for name in ("one", "two")]
    assert sorted(path.name for path in made[0]) == [
        "placement-rate-0.3-seats-2.svg",
        "placement-rate-0.3-seats-4.svg",
        "seats.svg",
        "slo-attainment-rate-0.3-seats-2.svg",
        "slo-attainment-rate-0.3-seats-4.svg",
        "throughput.svg",
    ]
    for first, second in zip(*made, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert "hexgen-flow" in (tmp_path / "one" / "throughput.svg").read_text()


def test_bars_of_a_group_stand_side_by_side_around_its_middle():
    pytest.importorskip("matplotlib")
    axes = plots.pyplot().figure().subplots()
    grouped_bars(axes, [("a", [1.0, 2.0], {"color": "red"}), ("b", [3.0, 4.0], {})])
    middles = [bar.get_x() + bar.get_width() / 2.0 for bar in axes.patches]
    assert middles == pytest.approx([-0.2, 0.8, 0.2, 1.2])
    assert [bar.get_height() for bar in axes.patches] == [1.0, 2.0, 3.0, 4.0]
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]
