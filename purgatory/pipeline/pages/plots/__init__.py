"""Plots as inline SVG, without a library: no script, sharp at any size, in the colours of the page.

Every function gives a whole `<svg>`. Colours are the page's CSS variables (`var(--satisfied)`), so that a plot follows
the reader's light or dark theme. Values are shown by a `<title>` on an invisible column per instant: the browser shows
it as a tooltip, and the page's script shows it under the plot for keys and touch.
"""

from purgatory.pipeline.pages.plots.axes import Series, clock_ticks, legend, ticks
from purgatory.pipeline.pages.plots.comparisons import bars, curve, survival
from purgatory.pipeline.pages.plots.over_time import area, heat, lines, stacked

__all__ = ["Series", "area", "bars", "clock_ticks", "curve", "heat", "legend", "lines", "stacked", "survival", "ticks"]
