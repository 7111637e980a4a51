"""From what a client said to the `CallSpec` that the scheduler sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.core.types import CallClass, CallId, CallSpec, InstanceId, Slo, WorkflowId
from dispatcher.gateway.parsing.body import BodyFacts
from dispatcher.gateway.parsing.hints import Hints

#: Most urgent first; a tenant's `max_class` cuts the list from the left.
_URGENCY = (
    CallClass.LATENCY,
    CallClass.COLLECTIVE,
    CallClass.THROUGHPUT,
    CallClass.BEST_EFFORT,
)

_NO_SLO = Slo()

EstimateTokens = Callable[[str, int], int]
"""Prompt tokens from (model, bytes of text)."""

_TOKENS_PER_PICTURE = 600
"""What a picture costs before an engine has said so: a 672-pixel image in 28-pixel patches."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """What a tenant may ask for."""

    name: str = "default"
    max_class: CallClass = CallClass.LATENCY
    weight: float = 1.0
    reject_late: bool = False
    scope: str = ""
    """What its workflow ids and stored responses are kept under, so that no other tenant meets
    them; empty where no key says who is who."""

    def own(self, workflow_id: str) -> WorkflowId:
        """The id under which the scheduler knows a workflow of this tenant."""
        return WorkflowId(self.scope + workflow_id)

    def end_to_end_s(self, asked_s: float | None, usual_s: float) -> float | None:
        """The SLO asked for; one that may not be most urgent gets none below the usual one."""
        if asked_s is None or self.max_class is CallClass.LATENCY:
            return asked_s
        return max(asked_s, usual_s)


def derive_class(hints: Hints, *, stream: bool, flex: bool) -> CallClass:
    """The class of a call that names none; the first that fits.

    1. A stream with a TTFT or TPOT SLO: `latency`. Of an answer that comes whole no token is seen.
    2. A part of a workflow, by its id: `collective`.
    3. No end-to-end SLO, and the tier for what may wait (`service_tier: flex`): `best-effort`.
    4. A stream without an end-to-end SLO: `latency`, since somebody reads along.
    5. An application but no workflow's id: `collective`, a workflow of one call.
    6. Everything else waits for one whole answer: `throughput`.
    """
    if stream and (hints.ttft_s is not None or hints.tpot_s is not None):
        return CallClass.LATENCY
    if hints.workflow_id is not None:
        return CallClass.COLLECTIVE
    if hints.slo_s is None and flex:
        return CallClass.BEST_EFFORT
    if hints.slo_s is None and stream:
        return CallClass.LATENCY
    return CallClass.THROUGHPUT if hints.application is None else CallClass.COLLECTIVE


def clamp_class(asked: CallClass, most: CallClass) -> CallClass:
    """The class asked for, or the most urgent that the tenant may have."""
    return max(asked, most, key=_URGENCY.index)


def make_spec(
    hints: Hints,
    facts: BodyFacts,
    tenant: TenantTerms,
    *,
    call_id: str,
    made_up_workflow_id: str,
    served_model: str,
    pinned_to: str | None,
    estimate_tokens: EstimateTokens,
    usual_slo_s: Callable[[str], float],
    usual_stream: Slo = _NO_SLO,
) -> CallSpec:
    """Put it together.

    Args:
        hints: From headers and body.
        facts: From the body.
        tenant: Clamps class, priority and SLOs.
        call_id: Unique among live calls.
        made_up_workflow_id: For a call that names no workflow: it is one of its own, and its last.
        served_model: The model's name at the engines, aliases resolved.
        pinned_to: The one instance that can serve it.
        estimate_tokens: From bytes of text.
        usual_slo_s: Of the workflows of an application, where clients ask for none.
        usual_stream: TTFT and TPOT SLOs of streams of class `latency` that ask for none.
    """
    alone = hints.workflow_id is None
    flex = facts.parsed.get("service_tier") == "flex"
    derived = hints.call_class or derive_class(hints, stream=facts.stream, flex=flex)
    call_class = clamp_class(derived, tenant.max_class)
    prompt_tokens = facts.prompt_token_ids + _TOKENS_PER_PICTURE * ("image" in facts.modalities)
    if facts.prompt_bytes or not prompt_tokens:
        prompt_tokens += estimate_tokens(served_model, facts.prompt_bytes)
    application = hints.application or "default"
    priority, slo = facts.client_priority, Slo(hints.slo_s, hints.ttft_s, hints.tpot_s)
    if tenant.max_class is not CallClass.LATENCY:
        # a tenant that may not be most urgent may yield its place, not jump the queue
        priority = max(0, priority)
        slo = Slo(tenant.end_to_end_s(hints.slo_s, usual_slo_s(application)))
    elif facts.stream and call_class is CallClass.LATENCY:
        ttft_s, tpot_s = slo.ttft_s or usual_stream.ttft_s, slo.tpot_s or usual_stream.tpot_s
        slo = Slo(slo.end_to_end_s, ttft_s, tpot_s)
    return CallSpec(
        call_id=CallId(call_id),
        workflow_id=tenant.own(hints.workflow_id or made_up_workflow_id),
        model=served_model,
        prompt_tokens=math.ceil(prompt_tokens / facts.prompts),
        prompts=facts.prompts,
        application=application,
        stage=hints.stage,
        stage_width=hints.stage_width,
        tenant=tenant.name,
        call_class=call_class,
        slo=slo,
        max_tokens=facts.max_tokens,
        seats=facts.seats,
        modalities=facts.modalities,
        pinned_to=None if pinned_to is None else InstanceId(pinned_to),
        tool=hints.tool,
        final=hints.final or alone,
        client_priority=priority,
        tenant_weight=tenant.weight,
        streaming=facts.stream,
        reject_late=tenant.reject_late,
        dedupe_key=hints.idempotency_key or hints.request_id,
        features=facts.features,
    )
