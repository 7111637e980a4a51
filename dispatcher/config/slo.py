"""SLOs that hold where no client asks for any."""

from __future__ import annotations

from pydantic import Field

from dispatcher.config.section import Section

_PACE_S_MAX = 1e7


class StreamSloSettings(Section):
    """Of the streams that somebody reads along; each key for those that ask for none of it."""

    ttft_s: float | None = Field(
        default=None, gt=0, le=_PACE_S_MAX, description="first token, seconds after arrival"
    )
    tpot_s: float | None = Field(
        default=None, gt=0, le=_PACE_S_MAX, description="each further token, seconds"
    )


class SloSettings(Section):
    """By class. What is end to end stands under `workflows`."""

    latency: StreamSloSettings = StreamSloSettings()
