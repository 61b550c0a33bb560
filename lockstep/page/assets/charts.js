"use strict";
/* Line charts over rounds. `lineChart(element, series)` returns {draw(columns)}; `series` is a list
   of {label, color, dash, points}, colours being names of the page's custom properties; `columns` is
   [rounds, values of series 1, ...], gaps are null. */

const WHOLE = [1, 2, 5].flatMap((each) => [1, 10, 100, 1000, 10000].map((ten) => each * ten))
  .sort((a, b) => a - b);

function lineChart(element, series) {
  let plot = null;
  let last = null;

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function options() {
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1 } };
    return {
      width: Math.max(element.clientWidth, 120),
      height: 220,
      scales: { x: { time: false } },
      axes: [{ ...axis, incrs: WHOLE }, { ...axis, size: 56 }],
      cursor: { drag: { x: true, y: false } },
      series: [{ label: "round" }, ...series.map((each) => ({
        label: each.label, stroke: color(each.color), width: 1.6, dash: each.dash,
        points: { show: each.points === true, size: 6, fill: color(each.color) }, spanGaps: true,
        value: (_, value) => (value === null || value === undefined ? "–" : value.toPrecision(4)),
      }))],
    };
  }

  function draw(columns) {
    last = columns;
    if (plot) {
      plot.setData(columns);
    } else {
      plot = new uPlot(options(), columns, element);
    }
  }

  function again() {
    if (!plot) return;
    plot.destroy();
    plot = null;
    draw(last);
  }

  new ResizeObserver(() => {
    if (plot && plot.width !== Math.max(element.clientWidth, 120)) {
      plot.setSize({ width: Math.max(element.clientWidth, 120), height: 220 });
    }
  }).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return { draw };
}
