"""All policies, in the order in which to show them, and the state that they read."""

from __future__ import annotations

from dispatcher.catalog.augserve import AUGSERVE_ENTRIES, AUGSERVE_OBSERVERS
from dispatcher.catalog.heteroserve import HETEROSERVE_ENTRIES, HETEROSERVE_OBSERVERS
from dispatcher.catalog.hexgen_flow import HEXGEN_FLOW_ENTRIES, HEXGEN_FLOW_OBSERVERS
from dispatcher.catalog.llmsched import LLMSCHED_ENTRIES, LLMSCHED_OBSERVERS
from dispatcher.catalog.own import OWN_ENTRIES
from dispatcher.catalog.tempo import TEMPO_ENTRIES, TEMPO_OBSERVERS
from dispatcher.core.ports import Observer, Policy
from dispatcher.registry import Registry

OBSERVERS: tuple[type[Observer], ...] = tuple(
    # some serve the policies of several papers
    dict.fromkeys(
        (
            *HEXGEN_FLOW_OBSERVERS,
            *TEMPO_OBSERVERS,
            *HETEROSERVE_OBSERVERS,
            *AUGSERVE_OBSERVERS,
            *LLMSCHED_OBSERVERS,
        )
    )
)
"""State that policies read, kept warm whatever policy is active."""

POLICIES: Registry[Policy] = Registry(
    "policy",
    (
        *HEXGEN_FLOW_ENTRIES,
        *TEMPO_ENTRIES,
        *HETEROSERVE_ENTRIES,
        *AUGSERVE_ENTRIES,
        *LLMSCHED_ENTRIES,
        *OWN_ENTRIES,
    ),
)
