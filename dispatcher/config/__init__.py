"""Settings: what they are, and how they are read from a file and the environment."""

from dispatcher.config.capability import CapabilitySettings
from dispatcher.config.loading import load_settings, reload_settings
from dispatcher.config.predictors import PredictorSettings
from dispatcher.config.profiles import EngineProfile, read_profile, read_profiles
from dispatcher.config.settings import (
    CENTRAL,
    EmbeddedSettings,
    EngineSettings,
    FleetSettings,
    ModelSettings,
    PolicySettings,
    QueueSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    TenantSettings,
    WorkflowSettings,
)
from dispatcher.config.slo import SloSettings, StreamSloSettings
from dispatcher.config.tuning import RecordingSettings, TuningSettings

__all__ = [
    "CENTRAL",
    "CapabilitySettings",
    "EmbeddedSettings",
    "EngineProfile",
    "EngineSettings",
    "FleetSettings",
    "ModelSettings",
    "PolicySettings",
    "PredictorSettings",
    "QueueSettings",
    "RecordingSettings",
    "ServerSettings",
    "Settings",
    "SloSettings",
    "StoreSettings",
    "StreamSloSettings",
    "TenantSettings",
    "TuningSettings",
    "WorkflowSettings",
    "load_settings",
    "read_profile",
    "read_profiles",
    "reload_settings",
]
