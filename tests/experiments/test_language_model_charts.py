"""Charts of figures 6 and 8 show what is there: the dip, the published losses, bars of no height, noise."""

from dataclasses import replace

import numpy as np

from experiments.test_language_models import made
from joma.experiments.language_model_charts import draw
from joma.experiments.language_model_config import PAPER, full
from joma.figures.chart import Bars, to_matplotlib


def test_charts_show_what_would_not_be_seen():
    charts = {chart.id: chart for chart in draw(made(full()))}
    for name in ("figure6-entropy", "figure8-entropy"):  # the dip lies in the first part of many steps
        assert all(panel.log_x and min(line.x[0] for line in panel.items) == 1 for panel in charts[name].panels)
    [losses] = charts["figure6-loss"].panels
    assert sum("published" in line.label for line in losses.items) == 4
    bars = [bar for panel in charts["rebound-controls"].panels for bar in panel.items if isinstance(bar, Bars)]
    assert {label for bar in bars for label in bar.labels} >= {"0 of 3", "3 of 3", "0 of 6", "6 of 6"}
    assert "6 of 15 at 1e-4" in charts["figure8-dip"].caption
    ceilings = [line for panel in charts["assumption1-drift"].panels for line in panel.items if line.style == "dashed"]
    assert len(ceilings) == 2 and all(np.allclose(line.y, 0.95) for line in ceilings)


def test_controls_have_a_row_for_each_depth_with_the_rebound_before_runs_overfit():
    result = made(full())
    until_best = result.tables["until_best"]
    cut_short = (until_best["condition"] == PAPER) & (until_best["best_of"] == "no dropout")
    falling = until_best.assign(kind=until_best["kind"].mask(cut_short, "falling"))
    changed = replace(result, tables={**result.tables, "until_best": falling})
    [chart] = [each for each in draw(changed) if each.id == "rebound-controls"]
    titles = ["top layer", "curves that rebound", "up to the lowest loss"]
    assert [panel.title for panel in chart.panels] == [
        f"{title}, depth {depth}" for depth in (1, 5) for title in titles
    ]
    bars, usual = chart.panels[-1].items
    at = bars.categories.index("no dropout")
    assert bars.labels[at] == "6 of 6" and usual.y[at] == 0 and np.delete(usual.y, at).tolist() == [1.0] * 4
    assert len(to_matplotlib(chart).legends) == 1


def test_losses_far_above_the_published_ones_are_left_out():
    result = made(full())
    curves = result.tables["curves"]
    is_loss = curves["metric"] == "loss"
    drawn = curves.assign(mean=curves["mean"].mask(is_loss & (curves["step"] == 0), 10.6), high=11.0)
    drawn = replace(result, tables={**result.tables, "curves": drawn})
    [losses] = [chart for chart in draw(drawn) if chart.id == "figure6-loss"]
    assert all(line.x[0] > 0 and line.y.max() < 6 for line in losses.panels[0].items)
    assert "more than 1 nat above" in losses.caption
