// The three charts and the table of steps as they leave the page: drawn from a run's document, pure, in light colours.

// A spreadsheet takes a text that starts so for a formula; after an apostrophe it does not.
const stepsCsv = (() => {
  const cell = (value) => {
    if (value === null) return "";
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const PLAIN = ["processed_tokens", "pad_tokens"];
  const LATER = ["reused_tokens", "drafted_tokens"]; // not in older documents
  const REST = ["elapsed_s", "at_s", "kv_bytes", "kv_held_bytes", "resident_bytes", "peak_extra_bytes", "flops"];
  const HEADS = ["way", "index", "phase", "rows", ...PLAIN, "new_tokens", ...REST, ...LATER];
  return (record) => {
    const lines = record.ways.flatMap((way) => way.result.steps.map((step) => [
      way.label, step.index, step.phase, step.rows.join(" "), ...PLAIN.map((name) => step[name]), freshOf(step),
      ...REST.map((name) => step[name]), ...LATER.map((name) => step[name] ?? 0),
    ]));
    return [HEADS, ...lines].map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  };
})();

// { data, layout } of one chart, as Plotly takes them. `colours` are the variables of assets/report.css by name.
const figureOf = (() => {
  const WINDOW = 8, MOST_POINTS = 500, MIB = 2 ** 20; // as kshipra/ui/columns.py
  const FONT = "'IBM Plex Sans', ui-sans-serif, system-ui, sans-serif";

  // Plotly reads a few tags in texts
  const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  const rateUpTo = (steps, end) => {
    const begin = Math.max(0, end - WINDOW + 1);
    const time = steps[end].at_s - (begin ? steps[begin - 1].at_s : 0);
    const made = sumOf(steps.slice(begin, end + 1), freshOf);
    return time > 0 && made ? made / time : null;
  };

  // As kshipra/ui/columns.py has them; null without a decode pass.
  const rowsOf = (group) => {
    const decode = group.filter((step) => step.phase === "decode" && step.processed_tokens);
    if (!decode.length) return { rows: null, places: null };
    const sum = (of) => decode.reduce((total, step) => total + of(step), 0);
    const rows = sum((step) => step.rows.length) / decode.length;
    return { rows, places: rows * (1 + sum((step) => step.pad_tokens) / sum((step) => step.processed_tokens)) };
  };

  // Of a server's way: from one piece of a prompt's text to the next, as kshipra/ui/columns.py has it.
  const gapsOf = (steps) => {
    const came = new Map();
    return steps.map(({ rows: [row], at_s: at }) => {
      const gap = at - (came.get(row) ?? 0);
      came.set(row, at);
      return gap;
    });
  };

  // A long run has more passes than a chart has room: one point for several, their mean time and the state after them.
  const pointsOf = (way) => {
    const steps = way.result.steps.filter((step) => tellsIds(way) || step.new_tokens.some(({ text }) => text));
    const times = tellsIds(way) ? steps.map((step) => step.elapsed_s) : gapsOf(steps);
    const mib = (value) => value === null ? null : value / MIB;
    const stride = Math.max(1, Math.ceil(steps.length / MOST_POINTS));
    const points = [];
    for (let begin = 0; begin < steps.length; begin += stride) {
      const group = steps.slice(begin, begin + stride);
      const last = group.at(-1);
      points.push({
        step: begin + group.length, at: last.at_s, rate: rateUpTo(steps, begin + group.length - 1),
        ms: (1000 * sumOf(times.slice(begin, begin + stride), (time) => time)) / group.length,
        above: last.resident_bytes === null ? null : mib(last.resident_bytes - steps[0].resident_bytes), kv: mib(last.kv_bytes),
        prefill: group.some((step) => step.phase === "prefill"), ...rowsOf(group),
      });
    }
    return points;
  };

  const LINES = {
    latency: [["step", "ms", "y"]], throughput: [["at", "rate", "y"]], memory: [["at", "above", "y"], ["at", "kv", "y2"]],
    rows: [["at", "rows", "y"]],
  };

  const traces = (way, all, [x, y, yaxis], colours) => {
    const points = y === "rows" ? all.filter((point) => point.rows !== null) : all;
    const of = (some, name) => some.map((point) => point[name]);
    const naming = { yaxis, name: literal(`${way.letter} ${way.label}`), showlegend: yaxis === "y" };
    const [line, end] = wayTraces(way, colours[`way-${hue(way)}`], 13, of(points, x), of(points, y), naming);
    if (y === "rows") return rowsTraces(line, end, of(points, "places"));
    const prefills = points.filter((point) => point.prefill);
    return y === "ms" ? [line, end, ringTrace(end, of(prefills, x), of(prefills, y))] : [line, end];
  };

  const axis = (title, colours, extra = {}) => ({
    title: { text: title, standoff: 8 }, gridcolor: colours.grid, zerolinecolor: colours.grid, linecolor: colours.line,
    automargin: true, rangemode: "tozero", ...extra,
  });

  return (record, { key, label, note }, words, colours) => {
    const font = { family: FONT, color: colours.soft, size: 12 };
    const about = literal(`${note} · ${record.model.spec.name}, ${record.model.device}`);
    const base = {
      paper_bgcolor: colours.card, plot_bgcolor: colours.card, font, separators: ".,", margin: { l: 60, r: 34, t: 84, b: 52 },
      title: {
        text: `${label}  <span style="font-size: 12px; font-weight: 400; color: ${colours.faint}">${about}</span>`,
        x: 0, xref: "paper", xanchor: "left", y: 0.95, yanchor: "top", font: { ...font, size: 17, weight: 700, color: colours.ink },
      },
      showlegend: true, legend: { orientation: "h", x: 0, y: 1.03, yanchor: "bottom" },
      xaxis: axis(key === "latency" ? words.step : words.seconds, colours),
      yaxis: axis({ latency: words.ms, rows: words.rows }[key] ?? words.rate, colours,
        key === "rows" ? rowTicks(record.ways.flatMap(pointsOf), "places") : {}),
    };
    const layout = key !== "memory" ? base : {
      ...base, xaxis: { ...base.xaxis, anchor: "y2" },
      yaxis: axis(words.resident, colours, { domain: [0.48, 1], rangemode: "normal" }),
      yaxis2: axis(words.kv, colours, { domain: [0, 0.36] }),
    };
    const data = record.ways.flatMap((way) => {
      const points = pointsOf(way);
      return points.length ? LINES[key].flatMap((line) => traces(way, points, line, colours)) : [];
    });
    return { data, layout };
  };
})();
