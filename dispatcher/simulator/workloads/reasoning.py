"""Reasoning: short questions, long answers.

Source: ServeGen (arXiv:2505.09999; data Apache-2.0), its `deepseek-r1`: length histograms of 46
clients over half a day, weighted by their rates. Outputs (mean 1,992 tokens, a tenth above 4,700)
hold the reasoning, 68 % of them on average. Prompt and output are drawn independently: the
histograms do not tell how they go together. No prefix is shared: not told either.
"""

from __future__ import annotations

from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads.draws import Quantiles
from dispatcher.simulator.workloads.single import SingleCalls

REASONING = SingleCalls(
    name="reasoning",
    summary="Single streamed calls with long reasoning (ServeGen, deepseek-r1)",
    prompt_tokens=Quantiles.parse(
        "0:4 0.01:9 0.05:12 0.1:15 0.2:22 0.3:30 0.4:51 0.5:84 0.6:171 0.7:234 0.75:388 0.8:436 "
        "0.85:1052 0.9:2419 0.92:3909 0.95:6876 0.97:12462 0.98:16306 0.99:22876 0.995:27872 "
        "0.999:33258 1:54954"
    ),
    output_tokens=Quantiles.parse(
        "0:9 0.01:150 0.05:247 0.1:343 0.2:473 0.3:662 0.4:966 0.5:1223 0.6:1425 0.7:1702 "
        "0.75:2035 0.8:2686 0.85:3570 0.9:4721 0.92:5476 0.95:6993 0.97:8886 0.98:10525 "
        "0.99:13482 0.995:16240 0.999:21125 1:32768"
    ),
    call_class=CallClass.THROUGHPUT,
)
