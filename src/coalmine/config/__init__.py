"""What a run is made of, as checked settings: the same for the command line and for files."""

from coalmine.config.ldp import LDPSettings
from coalmine.config.settings import Settings, settings_from_mapping, settings_from_texts
from coalmine.config.training import TrainingSettings

__all__ = ["LDPSettings", "Settings", "TrainingSettings", "settings_from_mapping", "settings_from_texts"]
