"""Old home of `Attended` and `Profiles`, until nothing imports them from here."""

from joma.measure.superposition import Attended, Profiles

__all__ = ["Attended", "Profiles"]
