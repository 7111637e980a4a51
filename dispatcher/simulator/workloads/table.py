"""All workloads by name."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.simulator.workloads.agents import CODING_AGENT, TOOL_AGENT
from dispatcher.simulator.workloads.augserve import MERGE, TOOLBENCH
from dispatcher.simulator.workloads.azure import CHAT, CODE
from dispatcher.simulator.workloads.base import Workload
from dispatcher.simulator.workloads.chess import CHESS_1, CHESS_2, CHESS_3
from dispatcher.simulator.workloads.heteroserve import HETEROSERVE, HETEROSERVE_BIMODAL
from dispatcher.simulator.workloads.llmsched import LLMSCHED_MIXES
from dispatcher.simulator.workloads.mac_sql import MAC_SQL
from dispatcher.simulator.workloads.mixed import Part, mixed
from dispatcher.simulator.workloads.reasoning import REASONING
from dispatcher.simulator.workloads.tempo import TEMPO, TEMPO_LONG

TWO_TENANTS = mixed(
    "two-tenants",
    [Part(CHESS_3, tenant="user-1"), Part(CHESS_3, tenant="user-2")],
    "Two tenants with the same text-to-SQL work, each with its own SLO (HexGen-Flow, figure 8)",
)
TWO_TENANTS_MIXED = mixed(
    "two-tenants-mixed",
    [
        Part(CHAT, weight=6, tenant="interactive"),
        Part(TOOL_AGENT, weight=1, tenant="interactive"),
        Part(CHESS_3, weight=2, tenant="analytics"),
        Part(REASONING, weight=1, tenant="analytics"),
    ],
    "A tenant with chat and tool agents beside one with text-to-SQL and reasoning",
)

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        CHESS_1,
        CHESS_2,
        CHESS_3,
        MAC_SQL,
        CHAT,
        CODE,
        TOOL_AGENT,
        CODING_AGENT,
        REASONING,
        TEMPO,
        TEMPO_LONG,
        MERGE,
        TOOLBENCH,
        HETEROSERVE,
        HETEROSERVE_BIMODAL,
        *LLMSCHED_MIXES,
        TWO_TENANTS,
        TWO_TENANTS_MIXED,
    )
}
