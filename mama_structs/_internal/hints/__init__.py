"""Errors that name the right call when a caller guesses a name."""
