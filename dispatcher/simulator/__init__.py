"""The gateway's scheduler in virtual time: the same coordinator, on engines that are played.

`simulate(trace, fleet, policy=...)` plays a trace and tells what became of it.
"""

from dispatcher.simulator.engines import Attempt, EngineControl, EnginePlayer
from dispatcher.simulator.fleet import Fault, FaultKind, SimulatedEngine, simulated_engine
from dispatcher.simulator.simulation import Experience, Simulated, simulate

__all__ = [
    "Attempt",
    "EngineControl",
    "EnginePlayer",
    "Experience",
    "Fault",
    "FaultKind",
    "Simulated",
    "SimulatedEngine",
    "simulate",
    "simulated_engine",
]
