"""Figures. They read results and nothing else; altair is imported where one is drawn."""
