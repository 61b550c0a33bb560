"use strict";
/* Line charts over rounds. `lineChart(element, series)` returns {draw(columns), log(on)}; `series`
   is a list of {label, color, width, dash, points}, colours being names of the page's custom
   properties; `columns` is [rounds, values of series 1, ...], gaps are null. */

const WHOLE = [1, 2, 5].flatMap((each) => [...Array(7).keys()].map((power) => each * 10 ** power))
  .sort((a, b) => a - b);

/* Pixels for the line below a chart that names its lines, before there is one. */
const LEGEND = 36;

const SHORT = [[1e6, "M"], [1e3, "k"]];

function shortNumber(value) {
  const [size, name] = SHORT.find(([least]) => value >= 10 * least) || [1, ""];
  return `${+(value / size).toPrecision(6)}${name}`;
}

function lineChart(element, series) {
  let plot = null;
  let last = null;
  let logarithmic = false;

  /* The style sheet decides how large the element is, and the chart fills it. */
  function size() {
    const legend = element.querySelector(".u-legend");
    const below = legend ? legend.offsetHeight : LEGEND;
    return { width: Math.max(element.clientWidth, 120),
      height: Math.max(element.clientHeight - below, 120) };
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function options() {
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1 } };
    const digits = (_, values) => values.map((each) => each === null ? "" : +each.toPrecision(3));
    return {
      ...size(),
      scales: { x: { time: false }, y: { distr: logarithmic ? 3 : 1 } },
      axes: [
        { ...axis, incrs: WHOLE, values: (_, values) => values.map(shortNumber) },
        { ...axis, size: 52, values: digits },
      ],
      cursor: { drag: { x: true, y: false } },
      series: [{ label: "round" }, ...series.map((each) => ({
        label: each.label, stroke: color(each.color), width: each.width || 1.6, dash: each.dash,
        points: { show: each.points === true, size: 6, fill: color(each.color) }, spanGaps: true,
        ...(each.points ? { paths: () => null } : {}),
        value: (_, value) => (value === null || value === undefined ? "–" : value.toPrecision(4)),
      }))],
    };
  }

  function shown(columns) {
    if (!logarithmic) return columns;
    return [columns[0], ...columns.slice(1).map((each) => each.map((one) => one > 0 ? one : null))];
  }

  function draw(columns) {
    last = columns;
    if (plot) plot.setData(shown(columns));
    else plot = new uPlot(options(), shown(columns), element);
    columns.slice(1).forEach((each, place) => {
      const filled = each.some((one) => one !== null);
      if (plot.series[place + 1].show !== filled) plot.setSeries(place + 1, { show: filled });
    });
  }

  function again() {
    if (!plot) return;
    plot.destroy();
    plot = null;
    draw(last);
  }

  function log(on) {
    logarithmic = on;
    again();
  }

  new ResizeObserver(() => {
    if (!plot) return;
    const { width, height } = size();
    if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
  }).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return { draw, log };
}
