"""Why measured and claimed numbers differ, as far as it was found out."""

from __future__ import annotations

GOODPUT = ""
TOOLBENCH = ""
TTFT = ""
NORMALISED = ""
COUNT = ""
BURSTS = ""
BATCHING = ""
SCHEDULING = ""
QUEUEING = ""
PREDICTING = ""
ENGINE = ""
FLOOR = ""
SMALL = ""
