"""Settings of several tables from texts, as `coalmine audit --set` reads them."""

from coalmine.config import settings_from_mapping, texts_to_mapping


def settings_from_texts(texts, *groups):
    """Return one settings object per group from texts ``key=value``; each key goes to the groups that have it."""
    return settings_from_mapping(texts_to_mapping(texts), *groups)
