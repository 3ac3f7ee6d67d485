// A chart of lines in SVG, with a table of its numbers for those who do not see it.

import { svg, lineColour } from "./dom.js";

const HEIGHT = 260;
const EDGE = { left: 62, right: 12, top: 26, bottom: 40 };

function ticks(low, high, n = 5) {
  const span = high - low || 1;
  const size = 10 ** Math.floor(Math.log10(span / n));
  const step = [1, 2, 5, 10].map((k) => k * size).find((s) => span / s <= n);
  // Counted: to add a step to a number that is far larger may not change it.
  const first = Math.ceil(low / step);
  return Array.from({ length: n + 2 }, (_, k) => (first + k) * step).filter((at) => at <= high + step / 1e6);
}

// The least and the largest of any number of values, with room where they are one.
function range(values) {
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const room = low === high ? Math.max(1, Math.abs(low) / 1e6) : 0;
  return [low - room, high + room];
}

const shown = (value) => (Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-4)
  ? value.toExponential(1) : `${Number(value.toPrecision(4))}`);

// series: [{ name, points: [[x, y]], here: [x, y] or undefined, number }]
export function chart(label, xName, yName, series, { points = false, legend = false } = {}) {
  // Drawn as wide as the screen has room for: scaled down, its words would be too small to read.
  const width = matchMedia("(max-width: 700px)").matches ? 340 : 640;
  const all = series.flatMap((one) => [...one.points, ...(one.here ? [one.here] : [])])
    .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  const made = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label, width, height: HEIGHT });
  if (!all.length) return made;
  let [x0, x1] = range(all.map((p) => p[0]));
  let [y0, y1] = range(all.map((p) => p[1]));
  const [px, py] = [(x1 - x0) * 0.03, (y1 - y0) * 0.06];
  [x0, x1, y0, y1] = [x0 - px, x1 + px, y0 - py, y1 + py];
  const at = (x, y) => [
    EDGE.left + ((x - x0) / (x1 - x0)) * (width - EDGE.left - EDGE.right),
    HEIGHT - EDGE.bottom - ((y - y0) / (y1 - y0)) * (HEIGHT - EDGE.top - EDGE.bottom),
  ];
  const text = (x, y, words, anchor) => {
    const one = svg("text", { x, y, "text-anchor": anchor });
    one.textContent = words;
    return one;
  };
  for (const y of ticks(y0, y1)) {
    const [, h] = at(x0, y);
    made.append(svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: h, y2: h }), text(EDGE.left - 6, h + 4, shown(y), "end"));
  }
  for (const x of ticks(x0, x1)) made.append(text(at(x, y0)[0], HEIGHT - EDGE.bottom + 16, shown(x), "middle"));
  made.append(
    svg("line", { class: "axis", x1: EDGE.left, x2: width - EDGE.right, y1: HEIGHT - EDGE.bottom, y2: HEIGHT - EDGE.bottom }),
    text((EDGE.left + width) / 2, HEIGHT - 6, xName, "middle"), text(4, 12, yName, "start"));
  if (series.length > 1 && legend) {
    series.forEach((one, i) => {
      const y = EDGE.top + 4 + 16 * i;
      const colour = lineColour(one.number ?? i);
      made.append(text(width - EDGE.right - 24, y + 4, one.name, "end"),
        svg("line", { x1: width - EDGE.right - 18, x2: width - EDGE.right, y1: y, y2: y, stroke: colour, "stroke-width": 3 }));
    });
  }
  series.forEach((one, i) => {
    const colour = lineColour(one.number ?? i);
    const kept = one.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)).map(([x, y]) => at(x, y));
    made.append(svg("polyline", { points: kept.map((p) => p.map((c) => c.toFixed(1)).join(",")).join(" "), fill: "none", stroke: colour, "stroke-width": 2 }));
    if (points) for (const [x, y] of kept) made.append(svg("circle", { cx: x, cy: y, r: 3, fill: colour }));
    if (one.here) {
      const [x, y] = at(...one.here);
      made.append(svg("circle", { class: "here", cx: x, cy: y, r: 6, fill: colour }));
    }
  });
  return made;
}
