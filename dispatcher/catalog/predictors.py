"""The predictors by name, each with its parameters and where it comes from.

What `dispatcher.catalog.policies` is for policies.
"""

from __future__ import annotations

from pydantic import Field

from dispatcher.core.ports import CostModel, LengthPredictor
from dispatcher.registry import Params, PolicyServices, Registry, entry
from dispatcher.trained import TrainedLengths, TrainedStages
from predictors.coverage import Coverage
from predictors.length_features import FEATURES, length_features
from predictors.linear_cost import LinearCost, LinearCostSettings
from predictors.prompt_tokens import PromptTokens
from predictors.rolling_quantiles import RollingQuantiles, RollingQuantilesSettings

DEFAULT_LENGTH_PREDICTOR = "rolling-quantiles"
DEFAULT_TRAINED_LENGTHS = "quantile-forest"
DEFAULT_TRAINED_STAGES = "bayesian-network"
DEFAULT_COST_MODEL = "linear"
DEFAULT_PROMPT_COUNTER = "bytes"


class NoParams(Params):
    """Nothing to set."""


class RollingQuantilesParams(Params):
    """As `RollingQuantilesSettings`."""

    window: int = Field(128, ge=1, description="latest lengths kept per key")
    min_samples: int = Field(5, ge=1, description="a key with fewer does not speak")
    prior_tokens: float = Field(256.0, ge=1.0, description="mean length before anything is known")


class LinearCostParams(Params):
    """As `LinearCostSettings`."""

    memory_samples: float = Field(
        300.0, gt=1.0, description="attempts after which evidence has lost two thirds of its weight"
    )


class PromptTokensParams(Params):
    """As `PromptTokens`."""

    memory_samples: float = Field(
        300.0, gt=1.0, description="calls after which evidence has lost two thirds of its weight"
    )


def _rolling_quantiles(
    params: RollingQuantilesParams, services: PolicyServices
) -> RollingQuantiles:
    return RollingQuantiles(RollingQuantilesSettings(**params.model_dump()))


def _linear_cost(params: LinearCostParams, services: PolicyServices) -> LinearCost:
    return LinearCost(LinearCostSettings(**params.model_dump()))


def _prompt_tokens(params: PromptTokensParams, services: PolicyServices) -> PromptTokens:
    return PromptTokens(**params.model_dump())


_LENGTH_PREDICTORS: Registry[LengthPredictor] = Registry(
    "length predictor",
    (
        entry(
            "rolling-quantiles",
            "Output length from the latest calls of the same stage, else application, else model.",
            None,
            RollingQuantilesParams,
            _rolling_quantiles,
        ),
    ),
)


def _quantile_forest(params: NoParams, services: PolicyServices) -> TrainedLengths:
    return TrainedLengths(
        train="predictors.quantile_forest:train",
        features=length_features,
        names=FEATURES,
        coverage=Coverage,
    )


_TRAINED_LENGTHS: Registry[TrainedLengths] = Registry(
    "trained length predictor",
    (
        entry(
            "quantile-forest",
            "Output length from a quantile regression forest over what is known on arrival.",
            "Tempo, section 4.1; Meinshausen, JMLR 2006",
            NoParams,
            _quantile_forest,
        ),
    ),
)


def _bayesian_network(params: NoParams, services: PolicyServices) -> TrainedStages:
    return TrainedStages(learn="predictors.bayesian_network:learn_network")


_TRAINED_STAGES: Registry[TrainedStages] = Registry(
    "learner of stages",
    (
        entry(
            "bayesian-network",
            "Which stages' durations tell of which: a network over bins, learned with pyAgrum.",
            "LLMSched, section IV-B",
            NoParams,
            _bayesian_network,
        ),
    ),
)

_COST_MODELS: Registry[CostModel] = Registry(
    "cost model",
    (
        entry(
            "linear",
            "Linear prefill and linear time per token, fitted per instance from its GPU's profile.",
            "HexGen-Flow, Eq. 2",
            LinearCostParams,
            _linear_cost,
        ),
    ),
)

_PROMPT_COUNTERS: Registry[PromptTokens] = Registry(
    "prompt counter",
    (
        entry(
            "bytes",
            "Prompt tokens from the bytes of the body, calibrated by the usage engines report.",
            None,
            PromptTokensParams,
            _prompt_tokens,
        ),
    ),
)


def length_predictors() -> Registry[LengthPredictor]:
    """Predictors of output length."""
    return _LENGTH_PREDICTORS


def trained_lengths() -> Registry[TrainedLengths]:
    """Predictors of output length that are trained in a process of their own."""
    return _TRAINED_LENGTHS


def trained_stages() -> Registry[TrainedStages]:
    """What learns how the stages of an application depend on each other."""
    return _TRAINED_STAGES


def cost_models() -> Registry[CostModel]:
    """Models of time on an instance."""
    return _COST_MODELS


def prompt_counters() -> Registry[PromptTokens]:
    """Estimators of prompt tokens."""
    return _PROMPT_COUNTERS
