"""What a run may be told (`models`) and how it is read (`loading`)."""

from offbeat.config.control import AppoConfig, ControlConfig, PolicyConfig
from offbeat.config.keys import all_keys
from offbeat.config.language import GrpoConfig, LanguageConfig
from offbeat.config.loading import (
    config_changes,
    config_digest,
    dump_config,
    load_config,
    parse_config,
)
from offbeat.config.models import RunConfig, control_sections, language_sections

__all__ = [
    "AppoConfig",
    "ControlConfig",
    "GrpoConfig",
    "LanguageConfig",
    "PolicyConfig",
    "RunConfig",
    "all_keys",
    "config_changes",
    "config_digest",
    "control_sections",
    "dump_config",
    "language_sections",
    "load_config",
    "parse_config",
]
