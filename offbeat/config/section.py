"""What every part of the configuration has in common."""

from pydantic import BaseModel, ConfigDict

MODULE_FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


class Section(BaseModel):
    """Base of every part of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
