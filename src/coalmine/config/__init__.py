"""Typed settings, the same for the command line and for TOML files."""

from coalmine.config.settings import SettingError, Settings, settings_from_mapping, settings_from_texts

__all__ = ["SettingError", "Settings", "settings_from_mapping", "settings_from_texts"]
