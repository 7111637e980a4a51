"""Chat and code completion of the Azure LLM inference trace of 2023.

Source: Azure public dataset, AzureLLMInferenceDataset2023 (CC-BY 4.0; cite Splitwise, ISCA 2024,
arXiv:2311.18677): 10,108 conversation and 5,740 code calls of half an hour. Quantiles below are
the trace's; prompts of chat pile up near 400, 1,050 and 4,090 tokens (limits of the service), its
answers near 100 and 400. Prompt and output are uncorrelated in both (rank correlation 0.03 and
-0.01). The trace does not tell which prefixes are shared: here none.

When such calls arrive: `AZURE_CHAT` and `AZURE_CODE` of `arrivals`.
"""

from __future__ import annotations

from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads.draws import Quantiles
from dispatcher.simulator.workloads.single import SingleCalls

CHAT = SingleCalls(
    name="chat",
    summary="Single streamed chat calls (Azure 2023, conversation)",
    prompt_tokens=Quantiles.parse(
        "0:2 0.01:39 0.025:128 0.05:181 0.1:310 0.15:379 0.2:389 0.25:398 0.3:406 0.35:426 "
        "0.4:944 0.45:1009 0.5:1033 0.55:1055 0.6:1080 0.65:1106 0.7:1142 0.75:1204 0.8:1322 "
        "0.85:2221 0.9:4076 0.95:4086 0.975:4094 0.99:4123 0.995:4146 0.999:5225 1:14050"
    ),
    output_tokens=Quantiles.parse(
        "0:7 0.01:16 0.025:27 0.05:38 0.1:49 0.15:60 0.2:71 0.25:80 0.3:87 0.35:93 0.4:100 "
        "0.45:110 0.5:134 0.55:162 0.6:198 0.65:374 0.7:390 0.75:396 0.8:403 0.85:414 0.9:427 "
        "0.95:460 0.975:534 0.99:610 1:1000"
    ),
    call_class=CallClass.LATENCY,
)

CODE = SingleCalls(
    name="code",
    summary="Single streamed code completions (Azure 2023, code)",
    prompt_tokens=Quantiles.parse(
        "0:3 0.01:17 0.025:47 0.05:76 0.1:147 0.15:230 0.2:374 0.25:575 0.3:768 0.35:925 "
        "0.4:1060 0.45:1219 0.5:1460 0.55:1678 0.6:1880 0.65:2142 0.7:2410 0.75:2703 0.8:3148 "
        "0.85:3894 0.9:5012 0.95:7315 0.975:7435 1:7437"
    ),
    output_tokens=Quantiles.parse(
        "0:6 0.05:6 0.1:7 0.15:7 0.2:8 0.25:9 0.3:9 0.35:10 0.4:11 0.45:12 0.5:13 0.55:14 "
        "0.6:16 0.65:17 0.7:19 0.75:23 0.8:28 0.85:37 0.9:53 0.95:85 0.975:142 0.99:247 "
        "0.999:900 1:1899"
    ),
    call_class=CallClass.LATENCY,
)
