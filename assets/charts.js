// The live charts. Points arrive as [step, ms, at_s, tok/s, resident MiB, KV MiB, prefill, rows, places] and are already
// rounded. That of the rows is there where they come and go.

const STEP = 0, MS = 1, AT = 2, RATE = 3, RESIDENT = 4, KV = 5, PREFILL = 6, ROWS = 7, PLACES = 8;
const SHORTEST_PAUSE_MS = 100; // charts take turns: each is drawn at most four times a second
const LONGEST_PAUSE_MS = 1500;
const LARGEST_SHARE = 0.02; // of the time may go into drawing: the model may compute on the same machine

const column = (points, at) => points.map((point) => point[at]);

const makeCharts = (page) => {
  const { words } = page;
  let recipes = [];
  let series = []; // a list of points a recipe
  let runId = "";
  let drawnAt = 0;
  let pause = SHORTEST_PAUSE_MS;
  let timer = null;
  let Plotly = null;

  const cards = Object.fromEntries(
    page.charts.map(({ key, label, note, definition }) => {
      const plot = make("div", { class: "k-plot k-away" }); // until it has something to show
      const table = make("div", { class: "k-data", hidden: "", tabindex: "0" });
      const empty = make("p", { class: "k-empty", text: words.chartIdle });
      const button = make("button", {
        type: "button", class: "k-switch", text: words.data, "aria-pressed": "false", "aria-label": words.dataLabel,
        on: { click: () => showTable(key, button.getAttribute("aria-pressed") === "false") },
      });
      const head = make("header", {}, make("h3", {}, term(label, definition)), make("small", { text: note }), button);
      const node = make("section", { class: "k-chart", id: `chart-${key}`, "aria-label": label }, head, plot, empty, table);
      return [key, { node, plot, table, empty, button }];
    }),
  );

  const showTable = (key, yes) => {
    const { table, button, plot } = cards[key];
    button.setAttribute("aria-pressed", String(yes));
    table.hidden = !yes;
    plot.classList.toggle("k-away", yes || !cards[key].empty.hidden);
    if (yes) fillTable(key);
  };

  const COLUMNS = {
    latency: [[words.step, STEP], [words.ms, MS], [words.prefillColumn, PREFILL]],
    throughput: [[words.secondsColumn, AT], [words.rate, RATE]],
    rows: [[words.secondsColumn, AT], [words.rowsColumn, ROWS], [words.placesColumn, PLACES]],
    memory: [[words.secondsColumn, AT], [words.residentColumn, RESIDENT], [words.kvColumn, KV]],
  };
  const cell = (value, at) => (value === null ? "–" : at === PREFILL ? (value ? "○" : "") : String(value));
  const fillTable = (key) => {
    const rows = recipes.flatMap((recipe, way) => series[way].map((point) =>
      make("tr", {}, make("td", { text: recipe.letter }), ...COLUMNS[key].map(([, at]) => make("td", { text: cell(point[at], at) })))));
    cards[key].table.replaceChildren(tableOf(["", ...COLUMNS[key].map(([label]) => label)], rows));
  };

  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  const trace = (way, x, y, extra) => {
    const recipe = recipes[way];
    const naming = { legendgroup: recipe.key, name: recipe.letter, meta: `${recipe.letter} ${recipe.label}` };
    return wayTraces(recipe, colour(`--k-way-${hue(recipe)}`), 12, x, y, { ...naming, ...extra });
  };

  const TRACES = {
    latency: (points, way) => {
      const [line, end] = trace(way, column(points, STEP), column(points, MS), { hovertemplate: `%{y} ${words.ms}<extra>%{meta}</extra>` });
      const prefills = points.filter((point) => point[PREFILL]);
      return [line, end, ringTrace(end, column(prefills, STEP), column(prefills, MS))];
    },
    throughput: (points, way) =>
      trace(way, column(points, AT), column(points, RATE), { hovertemplate: `%{y} ${words.rate}<extra>%{meta}</extra>` }),
    rows: (points, way) => {
      const decode = points.filter((point) => point[ROWS] !== null);
      const [line, end] = trace(way, column(decode, AT), column(decode, ROWS), { hovertemplate: `%{y} ${words.rows}<extra>%{meta}</extra>` });
      return rowsTraces(line, end, column(decode, PLACES));
    },
    memory: (points, way) => {
      const start = points[0]?.[RESIDENT] ?? 0;
      const above = points.map(({ [RESIDENT]: now }) => now === null ? null : Math.round((now - start) * 100) / 100);
      const hovertemplate = "%{y} MiB<extra>%{meta}</extra>";
      return [
        ...trace(way, column(points, AT), above, { hovertemplate }),
        ...trace(way, column(points, AT), column(points, KV), { yaxis: "y2", showlegend: false, hovertemplate }),
      ];
    },
  };

  const axis = (title, extra = {}) => ({
    title: { text: title, font: { size: 11 }, standoff: 6 }, gridcolor: colour("--k-grid"), zerolinecolor: colour("--k-grid"),
    linecolor: colour("--k-line"), tickfont: { size: 11 }, automargin: true, rangemode: "tozero", ...extra,
  });
  const layout = (key) => {
    const base = {
      uirevision: runId, paper_bgcolor: "transparent", plot_bgcolor: "transparent", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, color: colour("--k-soft"), size: 11 },
      margin: { l: 46, r: 24, t: 20, b: 38 }, hovermode: "closest", separators: ".,",
      hoverlabel: { bgcolor: colour("--k-card"), bordercolor: colour("--k-strong-line"), font: { color: colour("--k-ink") } },
      modebar: { bgcolor: "transparent", color: colour("--k-faint"), activecolor: colour("--k-accent") },
      showlegend: true, legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: 11 }, bgcolor: "transparent" },
      xaxis: axis(key === "latency" ? words.step : words.seconds),
      yaxis: axis({ latency: words.ms, rows: words.rows }[key] ?? words.rate, key === "rows" ? rowTicks(series.flat(), PLACES) : {}),
    };
    if (key !== "memory") return base;
    return {
      ...base,
      xaxis: { ...base.xaxis, anchor: "y2" },
      yaxis: axis(words.resident, { domain: [0.46, 1], rangemode: "normal" }),
      yaxis2: axis(words.kv, { domain: [0, 0.34] }),
    };
  };

  const plotOne = (key) =>
    Plotly.react(cards[key].plot, series.flatMap((points, way) => TRACES[key](points, way)), layout(key),
      { displaylogo: false, responsive: true, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] });
  const drawOne = (key) => {
    const { plot, empty, button, node } = cards[key];
    const isTable = button.getAttribute("aria-pressed") === "true";
    empty.hidden = true;
    plot.classList.toggle("k-away", isTable);
    plotOne(key);
    node.dataset.updates = Number(node.dataset.updates ?? 0) + 1;
    if (isTable) fillTable(key);
  };

  // Charts take turns, the one that has waited longest first; one that is scrolled out of sight waits until it is seen.
  const seen = new Set();
  const stale = new Set();
  const isDue = () => Plotly && series.some((points) => points.length) && [...stale].some((key) => seen.has(key));
  const drawNext = () => {
    const key = [...stale].find((each) => seen.has(each));
    const began = performance.now();
    stale.delete(key);
    drawOne(key);
    drawnAt = performance.now();
    pause = Math.max(SHORTEST_PAUSE_MS, Math.min(LONGEST_PAUSE_MS, (drawnAt - began) / LARGEST_SHARE));
  };
  const schedule = () => {
    if (timer !== null || !isDue()) return;
    timer = setTimeout(() => {
      timer = null;
      if (isDue()) drawNext();
      schedule();
    }, Math.max(0, drawnAt + pause - performance.now()));
  };
  const draw = (now = false) => {
    for (const key of Object.keys(cards)) stale.add(key);
    while (now && isDue()) drawNext();
    schedule();
  };
  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const key = target.id.replace("chart-", "");
      if (isIntersecting) seen.add(key);
      else seen.delete(key);
    }
    schedule();
  });
  for (const { node } of Object.values(cards)) sight.observe(node);

  loadPlotly(page.plotly).then((loaded) => {
    Plotly = loaded;
    for (const key of Object.keys(cards)) if (!cards[key].node.hidden) plotOne(key); // unseen: the first plot takes far longer than the next
    draw(true);
  }, () => {
    for (const { empty } of Object.values(cards)) empty.textContent = words.noPlotly;
  });
  new MutationObserver(() => draw(true)).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  const showRows = (yes) => {
    cards.rows.node.hidden = !yes;
    cards.rows.node.parentNode?.classList.toggle("k-four", yes);
  };
  showRows(false);

  return {
    nodes: Object.values(cards).map(({ node }) => node),
    start(id, chosen, ragged) {
      [runId, recipes, series] = [id, chosen, chosen.map(() => [])];
      showRows(ragged);
      for (const { node } of Object.values(cards)) node.dataset.updates = 0;
    },
    add: (way, points) => series[way].push(...points),
    draw,
  };
};
