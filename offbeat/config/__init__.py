"""What a run may be told (`models`) and how it is read (`loading`)."""

from offbeat.config.loading import (
    all_keys,
    config_changes,
    config_digest,
    dump_config,
    load_config,
    parse_config,
)
from offbeat.config.models import AppoConfig, ControlConfig, PolicyConfig, RunConfig

__all__ = [
    "AppoConfig",
    "ControlConfig",
    "PolicyConfig",
    "RunConfig",
    "all_keys",
    "config_changes",
    "config_digest",
    "dump_config",
    "load_config",
    "parse_config",
]
