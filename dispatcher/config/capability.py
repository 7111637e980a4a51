"""What an engine's hardware and model are on paper, where no known GPU type or size says so."""

from __future__ import annotations

from pydantic import Field

from dispatcher.config.section import Section
from dispatcher.core.gpu_profiles import Capability

_FIGURE_MAX = 1e9


class CapabilitySettings(Section):
    """Published figures of one GPU; an engine of several counts them `tp` times."""

    tflops: float = Field(
        gt=0, le=_FIGURE_MAX, description="peak dense bfloat16 rate, 10^12 operations per second"
    )
    hbm_gb: float = Field(gt=0, le=_FIGURE_MAX, description="memory, 10^9 bytes")
    tb_per_s: float = Field(
        gt=0, le=_FIGURE_MAX, description="memory bandwidth, 10^12 bytes per second"
    )

    @property
    def figures(self) -> Capability:
        """As the scheduler takes them, of one GPU."""
        return Capability(self.tflops, self.hbm_gb, self.tb_per_s)
