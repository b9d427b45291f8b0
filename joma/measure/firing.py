"""Old home of `Firing`, until nothing imports it from here."""

from joma.measure.superposition import Firing

__all__ = ["Firing"]
