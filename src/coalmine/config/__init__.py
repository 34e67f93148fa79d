"""Typed settings, the same for the command line and for TOML files."""

from coalmine.config.settings import SettingError, Settings

__all__ = ["SettingError", "Settings"]
