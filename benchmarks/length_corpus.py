"""Makes the corpus of answers' lengths that `headway bench predictors` judges by.

    python benchmarks/length_corpus.py FOLDER [OUT]

FOLDER has the published tables as parquet files (read with pandas and pyarrow, which Headway does
not need otherwise): len_zeroeval_{prompts,responses}, len_arenahard_{prompts,responses},
text_lmcache_agent_calls, text_tau_airline_messages. Where they come from and under which licences
is in dispatcher/bench/predictors/SOURCES.md, next to what this writes: `lengths.jsonl.xz`, one
prompt a line with the lengths of all models' answers to it (docs/predictors.md has the format).

Prompts stay whole, answers do not go in. What may not stand on both sides of a split has one
`group`: the prompt, and of agents the whole session, together with all sessions that share a
prompt with it; of the airline dialogues all that were held about one task.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

OUT = Path(__file__).parents[1] / "dispatcher" / "bench" / "predictors" / "lengths.jsonl.xz"
_ROLES = {"user": "user", "tool": "tool"}


def zeroeval(folder: Path) -> Iterator[dict[str, Any]]:
    """Reasoning tasks answered as JSON by some sixty models; some of them sampled."""
    prompts = pd.read_parquet(folder / "len_zeroeval_prompts.parquet").set_index("prompt_id")
    answers = pd.read_parquet(folder / "len_zeroeval_responses.parquet")
    by = ["prompt_id", "split", "max_tokens", "temperature"]
    for (prompt_id, split, max_tokens, temperature), rows in answers.groupby(by):
        prompt = prompts.loc[prompt_id]
        _, _, variant = split.partition("/")
        line = {
            "application": prompt["task"],
            "group": prompt_id,
            "prompt": prompt["prompt"],
            "prompt_tokens": int(prompt["prompt_tokens_cl100k"]),
            "max_tokens": int(max_tokens),
            "temperature": float(temperature),
        }
        if variant:
            line["stage"] = variant
        yield line | {"answers": _answers(rows["model"], rows["out_tokens_cl100k"])}


def arena_hard(folder: Path) -> Iterator[dict[str, Any]]:
    """Hard questions of people, three models."""
    prompts = pd.read_parquet(folder / "len_arenahard_prompts.parquet").set_index("uid")
    answers = pd.read_parquet(folder / "len_arenahard_responses.parquet")
    for uid, rows in answers.groupby("uid"):
        prompt = prompts.loc[uid]
        yield {
            "application": "arena-hard",
            "group": uid,
            "prompt": prompt["prompt"],
            "prompt_tokens": int(prompt["prompt_tokens_cl100k"]),
            "answers": _answers(rows["model"], rows["out_tokens_cl100k"]),
        }


def agent_calls(folder: Path) -> Iterator[dict[str, Any]]:
    """Calls of two agents; which model answered is not recorded, nor are some prompts."""
    calls = pd.read_parquet(folder / "text_lmcache_agent_calls.parquet")
    calls = calls[calls["input"].str.len() > 0]
    group_of = _sessions_together(calls)
    for row in calls.sort_values(["agent", "session_id", "call_idx"]).itertuples():
        yield {
            "application": row.agent,
            "group": group_of[row.session_id],
            "prompt": row.input,
            "prompt_tokens": int(row.input_tokens_cl100k),
            "answers": {f"unrecorded ({row.agent})": [int(row.output_tokens_cl100k)]},
        }


def airline(folder: Path) -> Iterator[dict[str, Any]]:
    """Turns of a tool-using airline agent: of the conversation, its last message goes in."""
    messages = pd.read_parquet(folder / "text_tau_airline_messages.parquet")
    for _, rows in messages.sort_values("msg_idx").groupby("sim"):
        said = list(rows.itertuples())
        for last, answer in pairwise(said):
            if answer.role != "assistant":
                continue
            line = {
                "application": "tau-airline",
                "group": f"task {answer.task_id}",
                "prompt": last.text if isinstance(last.text, str) else "",
                "prompt_tokens": int(answer.context_tokens_before),
                "messages": int(answer.msg_idx),
                "last_role": _ROLES[last.role],
            }
            if last.role == "tool" and isinstance(last.tool, str):
                line["tool"] = last.tool
            yield line | {"answers": {"unrecorded (tau-airline)": [int(answer.tokens_cl100k)]}}


def _answers(models: Any, tokens: Any) -> dict[str, list[int]]:
    """Lengths of at least 1 by model; an empty answer is a failed call."""
    answers: dict[str, list[int]] = {}
    for model, length in sorted(zip(models, tokens, strict=True)):
        if length >= 1:
            answers.setdefault(model, []).append(int(length))
    return answers


def _sessions_together(calls: Any) -> dict[str, str]:
    """One group for sessions that have a prompt in common, however indirectly."""
    group_of = {session: session for session in calls["session_id"]}
    for _, rows in calls.groupby("input"):
        groups = {group_of[session] for session in rows["session_id"]}
        for session, group in group_of.items():
            if group in groups:
                group_of[session] = min(groups)
    return group_of


def main() -> None:
    """Write the file and say what is in it."""
    folder = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else OUT
    parts = (zeroeval, arena_hard, agent_calls, airline)
    lines = [line for part in parts for line in part(folder) if line["answers"]]
    text = "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines)
    out.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    counts: dict[str, list[int]] = {}
    for line in lines:
        count = counts.setdefault(line["application"], [0, 0])
        count[0] += 1
        count[1] += sum(map(len, line["answers"].values()))
    for application, (prompts, answers) in counts.items():
        print(f"{application}: {prompts} prompts, {answers} answers")
    digest = hashlib.sha256(text.encode()).hexdigest()
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB, content sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
