"""Work as it was, or might be: workflows with the lengths and moments of their calls, no text.

Workload models make such traces, a gateway can record them, a file keeps them (one JSON line per
call), and whoever plays one (a simulator, a client over HTTP) reads the same words.
"""

from dispatcher.traces.jsonl import TraceError, call_lines, read_trace, write_trace
from dispatcher.traces.played import Played, PlayedCall, PlayedInstance, PlayedWorkflow
from dispatcher.traces.types import PrefixPart, Trace, TraceCall, TraceWorkflow

__all__ = [
    "Played",
    "PlayedCall",
    "PlayedInstance",
    "PlayedWorkflow",
    "PrefixPart",
    "Trace",
    "TraceCall",
    "TraceError",
    "TraceWorkflow",
    "call_lines",
    "read_trace",
    "write_trace",
]
