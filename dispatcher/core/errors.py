"""What can go wrong inside the scheduler.

HeadwayError
├── ConfigurationError      a setting, a parameter, a profile: says what, where, what was expected
│   ├── UnknownNameError        no such policy
│   │   └── UnknownProfileError     no such GPU or model (`gpu_profiles`)
│   ├── ModelDoesNotFitError    the weights leave no room for a KV cache (`gpu_profiles`)
│   └── BadParameterError       a policy parameter out of its schema
├── UnknownInstanceError    an event names an instance that is not in the fleet
└── InvariantError          the scheduler's own books do not add up: a defect, never bad input
"""

from __future__ import annotations

from collections.abc import Mapping


class HeadwayError(Exception):
    """Root of everything raised here."""


class ConfigurationError(HeadwayError):
    """A setting that cannot be used."""


class UnknownNameError(ConfigurationError):
    """A name that is in no catalog."""


class BadParameterError(ConfigurationError):
    """A parameter outside its schema.

    Attributes:
        mistakes: Parameters and what is wrong with each, where that is known so exactly.
    """

    def __init__(self, message: str, mistakes: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.mistakes: Mapping[str, str] = mistakes or {}


class UnknownInstanceError(HeadwayError):
    """An event about an instance that never joined."""


class InvariantError(HeadwayError, AssertionError):
    """A broken promise of DESIGN's list; carries the history of the call where there is one."""
