"""The alpha tuner at work: windows of live traffic, a worker process, the admin API's view."""

from dispatcher.gateway.tuner.live import LiveTuner, NotNowError
from dispatcher.gateway.tuner.subject import Subject

__all__ = ["LiveTuner", "NotNowError", "Subject"]
