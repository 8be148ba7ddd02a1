// One run as one HTML file that opens anywhere, offline and without scripts. It is built as elements and then written
// out, so every text of the run is a text node and the browser escapes it. The document itself lies in it as data:
// the report can be opened again like a JSON file.

// What a person set, in one line; also that of earlier runs.
const settingsLine = ({ settings }, words) => {
  const { prompts, params, chat, limits = [], rows = null, reuse = false } = settings; // the last three: not in older documents
  const own = limits.map((limit) => limit ?? params.max_new_tokens);
  return [
    filled(prompts.length === 1 ? words.prompt : words.prompts, { n: prompts.length }),
    own.length ? filled(words.limits, { least: Math.min(...own), most: Math.max(...own) }) : filled(words.most, { n: params.max_new_tokens }),
    ...(rows !== null && (own.length || rows < prompts.length) ? [filled(words.rows, { n: rows })] : []),
    ...(reuse ? [words.reuse] : []),
    params.temperature > 0 ? filled(words.drawn, { temperature: digits(params.temperature) }) : words.greedy,
    chat ? words.chat : words.raw,
  ].join(" · ");
};

const REPORT_DATA = "kshipra-run"; // the id of the element that holds the document

// The document inside of a report, as JSON; null where there is none. Nothing of the file is shown, run or fetched.
const dataOfReport = (html) =>
  new DOMParser().parseFromString(html, "text/html").querySelector(`script#${REPORT_DATA}[type="application/json"]`)?.textContent ?? null;

const makeReport = ({ words, heads, order, css, colours }) => {
  const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"; // a second lock: nothing to fetch, nothing to run

  // Plotly writes colours as numbers; as variables they follow light and dark.
  const picture = (svg, label) => {
    let text = svg;
    for (const [name, colour] of Object.entries(colours)) {
      const [red, green, blue] = colour.length === 4 ? [1, 2, 3].map((at) => parseInt(colour[at].repeat(2), 16))
        : [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      text = text.replaceAll(`rgb(${red}, ${green}, ${blue})`, `var(--k-${name})`);
    }
    const node = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    const size = ["width", "height"].map((name) => node.getAttribute(name));
    node.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
    for (const [name, value] of [["role", "img"], ["aria-label", label]]) node.setAttribute(name, value);
    node.style.background = "none";
    for (const name of ["width", "height"]) node.removeAttribute(name);
    return make("figure", {}, document.importNode(node, true));
  };

  const section = (title, ...children) => make("section", {}, make("h2", { text: title }), ...children);
  const facts = (pairs) => make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
  const said = (items) => make("ul", { class: "said" }, ...items.map((parts) => make("li", {}, ...parts)));

  const table = (record) => {
    const { rows } = record.summary;
    const [kept, ...cells] = inOrder(heads.slice(1), rows.map((row) => row[2]), order);
    const body = rows.map(([key, excluded], at) => wayRow(wayOf(record, key), excluded, cells[at]));
    return make("div", { class: "wide" }, tableOf([heads[0], ...kept], body));
  };

  const verdict = ({ summary: { headline, verdict: sentences, same } }) => make("section", {},
    ...(headline ? [make("p", { class: "headline", text: headline })] : []),
    ...sentences.map((text, at) => make("p", { class: "verdict", "data-same": at ? null : String(same), text })));

  // Ways that gave one text stand before it together.
  const texts = (record) => record.settings.prompts.flatMap((prompt, row) => {
    const groups = new Map();
    for (const way of record.ways) {
      const { text, finish_reason: reason } = way.result.rows[row];
      const same = JSON.stringify([text, reason]);
      if (!groups.has(same)) groups.set(same, { text, reason, ways: [] });
      groups.get(same).ways.push(way);
    }
    return [
      make("h3", { text: filled(words.promptHead, { n: row + 1 }) }), make("p", { class: "prompt", text: prompt }),
      ...[...groups.values()].map(({ text, reason, ways }) => make("div", { class: "text" }, make("div", {}, ...ways.map(mark)),
        make("p", { class: "new", text: text || words.noText }, make("span", { class: "note", text: ` · ${words.finish[reason]}` })))),
    ];
  });

  const predictions = ({ ways }) => ways.filter((way) => way.prediction).map((way) => [mark(way), way.prediction.sentence]);

  const bugLab = ({ bug, ways, checks }) => bug && section(words.bug, make("p", { text: `${bug.label}. ${bug.sentence} ${bug.why}` }),
    said(ways.flatMap((way) => (checks[way.key] ?? []).map(({ label, passed }) => [mark(way), `${label} ${passed ? words.passed : words.failed}`]))));

  const machine = ({ machine: { processor, system, memory_bytes: memory }, model, versions, kshipra }) => facts([
    [words.processor, processor], [words.system, system], [words.memory, bytes(memory)],
    [words.device, model.device === "cpu" ? filled(words.cpu, { n: model.threads }) : model.device],
    [words.versions, [["kshipra", kshipra], ...Object.entries(versions)].map(([name, value]) => `${name} ${value ?? "–"}`).join(" · ")],
  ]);

  const model = ({ model: { spec, weight_bytes: weights, kv_bytes_per_token: kv }, settings: { choice } }) => facts([
    [words.model, spec.name], [words.asked, choice.model], [words.shape, filled(words.shapeText, { ...spec, parameters: spec.parameters.toLocaleString("en-US") })],
    [words.precision, filled(words.precisionText, { dtype: spec.dtype, weights: choice.weights, execution: choice.execution })],
    [words.weights, bytes(weights)], [words.kvPerToken, bytes(kv)],
  ]);

  const settings = (record) => {
    const { params } = record.settings;
    const seeds = [...new Set(record.ways.flatMap((way) => way.result.rows.map((row) => row.seed)))].filter((seed) => seed !== null);
    return facts([
      [words.settingsLine, settingsLine(record, words.settings)], [words.topK, params.top_k ? String(params.top_k) : words.off],
      [words.topP, params.top_p < 1 ? digits(params.top_p) : words.off],
      [words.penalty, params.repetition_penalty === 1 ? words.off : digits(params.repetition_penalty)],
      [words.seeds, seeds.length ? seeds.join(", ") : "–"], [words.stops, params.stop.length ? params.stop.map((text) => JSON.stringify(text)).join(", ") : "–"],
    ]);
  };

  const head = (title) => make("head", {}, make("meta", { charset: "utf-8" }),
    make("meta", { "http-equiv": "Content-Security-Policy", content: POLICY }),
    make("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    make("title", { text: title }), make("style", { text: css }));

  return (record, pictures) => {
    const title = filled(words.reportTitle, { model: record.model.spec.name });
    const when = `${new Date(record.taken_at).toISOString().slice(0, 16).replace("T", " ")} UTC`;
    const logo = document.querySelector(".k-brand svg")?.cloneNode(true);
    const compared = record.comparisons.map(({ first, second, sentence }) => [mark(wayOf(record, first)), mark(wayOf(record, second)), sentence]);
    const main = make("main", {},
      make("header", {}, ...(logo ? [logo] : []), make("div", {}, make("h1", { text: title }),
        make("p", { text: filled(words.reportLine, { machine: record.machine.processor, when }) }))),
      verdict(record),
      section(words.figures, table(record)),
      section(words.charts, ...pictures.map(({ svg, label }) => picture(svg, label))),
      section(words.texts, ...texts(record)),
      ...(compared.length ? [section(words.comparisons, said(compared))] : []),
      ...(predictions(record).length ? [section(words.predictions, said(predictions(record)))] : []),
      ...(record.bug ? [bugLab(record)] : []),
      section(words.settingsHead, settings(record)), section(words.modelHead, model(record)), section(words.machineHead, machine(record)),
      make("footer", { text: words.reopen }));
    const data = JSON.stringify(record).replaceAll("<", "\\u003c");
    const html = make("html", { lang: "en" }, head(title), make("body", {}, main, make("script", { type: "application/json", id: REPORT_DATA, text: data })));
    return `<!doctype html>\n${html.outerHTML}\n`;
  };
};
