"""The explorer: sliders that move the flows of the paper, its statements one by one, and trainings played back."""

from joma.explore.page import ExploreServer, explore, write_static

__all__ = ["ExploreServer", "explore", "write_static"]
