"""A flood of long prompts at a real engine with few KV blocks: a budget spares it preemptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmark_programs import played
from engines import Engine

SEATS = 64
#: of 32 tokens: room for some forty of the calls, with their answers
KV_BLOCKS = 1024
#: far more than any budget costs: a machine with other work is no place for a tighter bound
LOST_MOST = 0.5


def test_long_prompts_within_a_budget_are_hardly_preempted(
    spawn_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = spawn_engine(max_num_seqs=SEATS, flags=("--num-gpu-blocks-override", str(KV_BLOCKS)))
    assert engine.process is not None
    document = played(
        "token_budget",
        tmp_path,
        (engine,),
        *("--pid", str(engine.process.pid), "--seats", str(SEATS), "--rounds", "1", "--warm", "32"),
        *("--calls", "240", "--prompt-words", "400", "--output", "120", "--kv-share", "0.95"),
    )
    without, with_budget = document["plays"]
    assert (without["kv_share"], with_budget["kv_share"]) == (None, 0.95)
    assert without["output_tokens"] == with_budget["output_tokens"]
    assert without["preemptions"] > 5
    assert with_budget["preemptions"] * 3 < without["preemptions"]
    assert document["throughput_lost"]["engine_cpu_s"] < LOST_MOST
