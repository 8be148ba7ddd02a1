// Timeline: a bar a way on one axis, its time split into waiting, prefill and decode; padding is a share of a pass's height.

const makeTimeline = (() => {
  const HEIGHT = 44;
  const DECODE_TOP = 12; // a prefill stands taller than a decode: told apart without colour
  const MOST_ROWS = 500; // of the table
  const KINDS = ["waiting", "prefill", "decode", "pads"];
  const TOKENS = { reused: "reused_tokens", guessed: "drafted_tokens" }; // not in older documents

  const hatch = (id, kind, angle) => svg("pattern", { id, class: `k-hatch-${kind}`, width: 5, height: 5,
    patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` },
    svg("rect", { width: 5, height: 5 }), svg("line", { y2: 5 }));
  // A pattern takes its colours from where it stands, so each bar has its own.
  const hatches = (id) => svg("defs", {}, hatch(`${id}-waiting`, "waiting", -45), hatch(`${id}-pads`, "pads", 45));
  const area = (id, kind, d) => svg("path", { class: `k-span-${kind}`, "data-kind": kind, d,
    ...(kind === "waiting" || kind === "pads" ? { fill: `url(#${id}-${kind})` } : {}) });
  const box = (...numbers) => {
    const [x, y, width, height] = numbers.map((number) => number.toFixed(2));
    return `M${x} ${y}h${width}v${height}h-${width}z`;
  };

  const sum = sumOf;
  const padShare = (steps) => {
    const pads = sum(steps, (step) => step.pad_tokens);
    return pads ? pads / (pads + sum(steps, (step) => step.processed_tokens)) : 0;
  };
  const timeIn = (steps, phase) => sum(steps, (step) => (step.phase === phase ? step.elapsed_s : 0));

  // What a bar is made of: the wait, then its passes. One at least a pixel wide stands alone; narrower ones that begin
  // in the same pixel are one, so that thousands of passes cost no more than the bar is wide.
  const itemsOf = (way, begin, scale) => {
    const items = begin > 0 ? [{ from: 0, to: begin, steps: [] }] : [];
    for (const step of way.result.steps) {
      const to = begin + step.at_s;
      const from = to - step.elapsed_s;
      const pixel = Math.floor(from * scale);
      const last = items.at(-1);
      if (last?.pixel === pixel && (to - from) * scale < 1) {
        last.to = to;
        last.steps.push(step);
      } else items.push({ pixel, from, to, steps: [step] });
    }
    return items;
  };

  // The areas of all items of each kind: one path a kind, however many passes.
  const pathsOf = (items, scale) => {
    const paths = Object.fromEntries(KINDS.map((kind) => [kind, ""]));
    for (const { from, to, steps } of items) {
      const [x, width] = [from * scale, (to - from) * scale];
      if (!steps.length) {
        paths.waiting += box(x, DECODE_TOP, width, HEIGHT - DECODE_TOP);
        continue;
      }
      const phase = timeIn(steps, "prefill") >= timeIn(steps, "decode") ? "prefill" : "decode";
      const top = phase === "prefill" ? 0 : DECODE_TOP;
      const padded = (HEIGHT - top) * padShare(steps);
      const drawn = width >= 3 ? width - 0.8 : Math.max(width, 0.75); // a gap between passes where there is room for one
      paths[phase] += box(x, top, drawn, HEIGHT - top - padded);
      if (padded) paths.pads += box(x, HEIGHT - padded, drawn, padded);
    }
    return paths;
  };

  const between = (values) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return least === most ? String(least) : `${least}–${most}`;
  };
  const describe = (words, { from, to, steps }, count, before) => {
    if (!steps.length)
      return filled(words.waited, { time: seconds(to - from), ways: before.map(({ letter }) => letter).join(", ") });
    const phases = [...new Set(steps.map((step) => words[step.phase]))].join(words.and);
    const [first, last] = [steps[0].index + 1, steps.at(-1).index + 1];
    const head = filled(first === last ? words.pass : words.passes, { first, last, count, phase: phases });
    const more = ["reused", "guessed"].map((kind) => [kind, sum(steps, (step) => step[TOKENS[kind]] ?? 0)])
      .filter(([, n]) => n).map(([kind, n]) => ` · ${filled(words[kind], { n })}`);
    return `${head}\n${filled(words.details, {
      rows: between(steps.map((step) => step.rows.length)), tokens: sum(steps, (step) => step.processed_tokens),
      fresh: sum(steps, freshOf), pads: sum(steps, (step) => step.pad_tokens),
      time: seconds(sum(steps, (step) => step.elapsed_s)),
    })}${more.join("")}`;
  };

  // The bar's own ways of asking: hover, tap, and the arrow keys with one tab stop.
  const makeAsking = (bar, tip, cursor, items, scale, text) => {
    let current = 0;
    const show = (at) => {
      current = Math.max(0, Math.min(items.length - 1, at));
      const { from, to } = items[current];
      const said = text(items[current]);
      bar.setAttribute("aria-valuenow", current + 1);
      bar.setAttribute("aria-valuetext", said.replace("\n", "; "));
      cursor.setAttribute("x", from * scale - 1);
      cursor.setAttribute("width", Math.max(3, (to - from) * scale + 1));
      bar.append(tip);
      setText(tip, said);
      bar.classList.add("k-asked");
      const middle = Math.max(0, Math.min(bar.clientWidth, ((from + to) / 2) * scale));
      tip.style.left = `${Math.max(0, Math.min(middle - tip.offsetWidth / 2, bar.clientWidth - tip.offsetWidth))}px`;
    };
    const hide = () => bar.classList.remove("k-asked");
    const under = ({ clientX }) => {
      const time = (clientX - bar.getBoundingClientRect().left) / scale;
      return items.findLastIndex(({ from }) => from <= time);
    };
    const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10,
      Home: -Infinity, End: Infinity };
    bar.addEventListener("pointermove", (event) => show(under(event)));
    bar.addEventListener("pointerdown", (event) => show(under(event)));
    bar.addEventListener("pointerleave", () => document.activeElement === bar ? show(current) : hide());
    bar.addEventListener("focus", () => show(current));
    bar.addEventListener("blur", hide);
    bar.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      show(current + STEPS[event.key]);
    });
    bar.setAttribute("aria-valuetext", text(items[0]).replace("\n", "; "));
  };

  const makeBar = (words, way, before, frame) => {
    const { begin, scale, ticks, tip } = frame;
    const id = `k-timeline-${way.key}`;
    const items = itemsOf(way, begin, scale);
    const paths = pathsOf(items, scale);
    const cursor = svg("rect", { class: "k-cursor", y: 0, height: HEIGHT });
    const drawing = svg("svg", { height: HEIGHT, "aria-hidden": "true" }, hatches(id),
      ...ticks.map((tick) => svg("line", { class: "k-tick", x1: tick * scale, x2: tick * scale, y2: HEIGHT })),
      ...KINDS.filter((kind) => paths[kind]).map((kind) => area(id, kind, paths[kind])), cursor);
    if (!items.length) return make("div", { class: "k-timebar" }, drawing);
    const bar = make("div", { class: "k-timebar", tabindex: "0", role: "slider", "aria-valuemin": "1", "aria-valuemax": items.length,
      "aria-valuenow": "1", "aria-label": filled(words.bar, { way: way.label }) }, drawing);
    makeAsking(bar, tip, cursor, items, scale, (item) => describe(words, item, way.result.steps.length, before));
    return bar;
  };

  // Percent of what was computed, at most three digits; never "0 %" where there was some.
  const percent = (share) => digits(share * 100 >= 0.1 ? Math.round(share * 1000) / 10 : share * 100);
  const makeHead = (words, way, begin) => {
    const { steps } = way.result;
    const [waiting, prefill, decode] = [begin, timeIn(steps, "prefill"), timeIn(steps, "decode")]
      .map((time) => seconds(time).replace(" ", "\u00a0"));
    const times = { waiting, prefill, decode };
    const share = padShare(steps);
    const padding = !tellsIds(way) ? "" : share ? filled(words.padding, { share: percent(share) }) : words.noPadding;
    const note = way.ended === "done" ? [] : [make("small", { text: words[way.ended] })];
    return make("div", { class: "k-timeline-head" },
      make("h3", {}, mark(way), make("span", { text: way.label }), ...note),
      make("p", { text: steps.length ? filled(begin > 0 ? words.times : words.timesFirst, times) : words.noPasses }),
      make("p", { class: "k-padding", text: steps.length ? padding : "" }));
  };

  // Round numbers along `span`, about `most` of them.
  const ticksOf = (span, most) => {
    const rough = span / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999) ?? span;
    return Array.from({ length: Math.floor(span / step + 1e-6) + 1 }, (_, at) => at * step);
  };
  const axisOf = (words, { span, scale, width, ticks }) => {
    const [factor, title] = span >= 1 ? [1, words.axisSeconds] : [1000, words.axisMilliseconds];
    const texts = ticks.map((tick) => {
      const x = tick * scale;
      const anchor = x < 12 ? "start" : x > width - 16 ? "end" : "middle";
      return svg("text", { x, y: 13, "text-anchor": anchor }, digits(tick * factor));
    });
    const drawing = svg("svg", { height: 18, "aria-hidden": "true" }, ...texts);
    return [drawing, make("p", { text: title })];
  };

  const makeLegend = (words) => make("ul", { class: "k-legend", "aria-label": words.legend }, ...KINDS.map((kind) => {
    const id = `k-legend-${kind}`;
    const top = kind === "prefill" ? 0 : 4;
    const sample = svg("svg", { width: 22, height: 16, "aria-hidden": "true" }, hatches(id),
      area(id, kind, box(0, top, 22, 16 - top)));
    return make("li", {}, sample, term(words[kind], words[`${kind}Meaning`]));
  }));

  const makeTable = (words, record) => {
    const most = Math.floor(MOST_ROWS / record.ways.length);
    const cellsOf = (way, step) => [way.letter, step.index + 1, words[step.phase], seconds(step.at_s - step.elapsed_s),
      seconds(step.elapsed_s), step.rows.length, step.processed_tokens ?? "–", freshOf(step) ?? "–", step.pad_tokens ?? "–"];
    const rows = record.ways.flatMap((way) => way.result.steps.slice(0, most).map((step) =>
      make("tr", {}, ...cellsOf(way, step).map((text) => make("td", { text })))));
    const isCut = record.ways.some(({ result }) => result.steps.length > most);
    return [...(isCut ? [make("p", { class: "k-cut", text: filled(words.cut, { most }) })] : []),
      tableOf(words.columns, rows)];
  };

  return ({ words }) => {
    let shown = null;
    let drawnWidth = 0;
    const tip = make("div", { class: "k-pass-tip", "aria-hidden": "true" });
    const bars = make("div", { class: "k-bars" });
    const axis = make("div", { class: "k-axis" }); // as wide as a bar
    const table = make("div", { class: "k-timeline-data k-table", hidden: "", tabindex: "0", role: "region",
      "aria-label": words.tableLabel });
    const isTable = () => button.getAttribute("aria-pressed") === "true";
    const button = make("button", { type: "button", class: "k-switch", text: words.data, "aria-pressed": "false",
      "aria-label": words.dataLabel, on: { click: () => showTable(!isTable()) } });
    const showTable = (yes) => {
      button.setAttribute("aria-pressed", String(yes));
      table.hidden = !yes;
      table.replaceChildren(...(yes ? makeTable(words, shown) : []));
    };
    const draw = () => {
      const width = drawnWidth = axis.clientWidth;
      if (!shown || !width) return;
      const span = sum(shown.ways, ({ result }) => result.wall_s) || 1;
      const frame = { span, width, scale: width / span, ticks: ticksOf(span, Math.max(3, Math.min(8, width / 90))), tip };
      let begin = 0;
      const rows = shown.ways.map((way, at) => {
        const row = make("section", { class: `k-timeline-way k-hue-${hue(way)}`, "data-way": way.key, "aria-label": way.label },
          makeHead(words, way, begin), makeBar(words, way, shown.ways.slice(0, at), { ...frame, begin }));
        begin += way.result.wall_s;
        return row;
      });
      bars.replaceChildren(...rows);
      axis.replaceChildren(...axisOf(words, frame));
    };
    new ResizeObserver(() => axis.clientWidth !== drawnWidth && draw()).observe(axis);
    const filledNode = make("div", { class: "k-timeline-all", hidden: "" },
      make("header", {}, makeLegend(words), button), bars, axis, table);
    return { node: make("div", { class: "k-view k-timeline" }, filledNode), show(record) {
      shown = record;
      filledNode.hidden = false;
      draw();
      showTable(isTable());
    } };
  };
})();
