// How a way is drawn, in the live charts and in those that leave the page: its line, its letter at the line's end, and
// nothing a point, because a node for every point would cost more than the line. `size` is the letter's.

const wayTraces = (way, ink, size, x, y, extra = {}) => {
  const shared = { type: "scatter", cliponaxis: false, ...extra };
  const line = {
    ...shared, x, y, mode: x.length === 1 ? "markers" : "lines",
    line: { color: ink, width: 2, dash: DASHES[hue(way)] }, marker: { color: ink, size: 6 },
  };
  const end = {
    ...shared, x: x.slice(-1), y: y.slice(-1), mode: "text", text: [` ${way.letter}`], textposition: "middle right",
    textfont: { color: ink, size, weight: 700 }, showlegend: false, hoverinfo: "skip", hovertemplate: null,
  };
  return [line, end];
};

// Rows that run as steps over the passes they took part in, and up to the places that were computed a shade: places of
// rows that had ended.
const rowsTraces = (line, end, places) => {
  const steps = { ...line, line: { ...line.line, shape: "vh" } };
  if (places.every((all, at) => all === line.y[at])) return [steps, end];
  const shade = {
    ...steps, y: places, mode: "lines", line: { width: 0, shape: "vh" }, fill: "tonexty", fillcolor: `${line.line.color}33`, showlegend: false,
    hoverinfo: "skip", hovertemplate: null,
  };
  return [steps, shade, end];
};
// Rows are whole: a tick at one, or at every so many.
const rowTicks = (points, places) =>
  ({ dtick: Math.max(1, Math.ceil(points.reduce((most, point) => Math.max(most, point[places]), 0) / 5)) });

// Rings on a way's line where a prompt was read, from the trace of its letter.
const ringTrace = (end, x, y) => ({
  ...end, x, y, mode: "markers", text: null,
  marker: { color: end.textfont.color, symbol: "circle-open", size: end.textfont.size - 5, line: { width: 1.5 } },
});
