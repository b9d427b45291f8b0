"""Charts from tidy tables: one spec gives the interactive chart, PNG, SVG and PDF.

>>> import pandas as pd
>>> table = pd.DataFrame({"step": [1, 10, 100], "entropy": [4.8, 2.1, 2.6]})
>>> chart = lines(table, "step", "entropy", x_log=True, title="Entropy falls and recovers")
>>> chart.id
'entropy-falls-and-recovers'

Importing this package needs no drawing library; making a chart needs Altair, and drawing it vl-convert.
"""

from joma.charts.builders import Options, Rule, bars, beside, heatmap, lines, points, stack
from joma.charts.chart import Chart, bundle, bundle_files
from joma.charts.results import frame, plot, simulation_charts

__all__ = [
    "Chart", "Options", "Rule", "bars", "beside", "bundle", "bundle_files", "frame", "heatmap", "lines", "plot",
    "points", "simulation_charts", "stack",
]  # fmt: skip
