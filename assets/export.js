// Take a run with you as files, and open one that was taken. All of it happens in this browser.

const makeExport = ({ words, open, page }) => {
  const MOST_BYTES = 64 * 2 ** 20;
  const SIZE = { width: 960, height: 540 };
  let record = null;
  // Light colours, whatever the page shows: a picture goes into a paper.
  const colours = Object.fromEntries([...page.report_css.matchAll(/--k-([\w-]+): (#\w+)/g)].reverse().map(([, name, value]) => [name, value]));
  const report = makeReport({ words, heads: page.summary_heads, order: page.summary_order, css: page.report_css, colours });

  const status = make("p", { class: "k-said", role: "status" });
  const say = (text, refused = false) => {
    status.classList.toggle("k-refused", refused);
    setText(status, text);
  };

  // Files out

  const nameOf = ({ model, taken_at: when }) => {
    const name = model.spec.name.replace(/[^\w.-]+/g, "-").replace(/^[.-]+/, "").slice(0, 60) || "model";
    const [day, time] = new Date(when).toISOString().slice(0, 19).replaceAll(/[-:]/g, "").split("T");
    return `kshipra-${name}-${day}-${time}`;
  };
  const save = (ending, content, type) => {
    const href = URL.createObjectURL(new Blob([content], { type }));
    const link = make("a", { href, download: nameOf(record) + ending });
    link.click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
    say(filled(words.saved, { file: link.download }));
  };
  const drawn = (shown, chart, format) =>
    window.Plotly.toImage(figureOf(shown, chart, words, colours), { ...SIZE, format, scale: format === "png" ? 2 : 1, imageDataOnly: true });
  const saveChart = async (chart, format) => {
    const data = await drawn(record, chart, format);
    if (format === "svg") save(`-${chart.key}.svg`, data, "image/svg+xml");
    else save(`-${chart.key}.png`, Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), "image/png");
  };
  const saveReport = async () => {
    const shown = record;
    const pictures = [];
    for (const chart of page.charts) pictures.push({ label: chart.label, svg: await drawn(shown, chart, "svg") });
    save(".html", report(shown, pictures), "text/html");
  };
  const button = (text, work, label) => make("button", {
    type: "button", class: "k-button", text, "aria-label": label,
    on: { click: () => Promise.resolve().then(work).catch(() => say(words.notDrawn, true)) },
  });

  // Files in

  const parsed = (text) => {
    const json = text.trimStart().startsWith("<") ? dataOfReport(text) : text;
    if (json === null) return [null, words.noData];
    try {
      const run = JSON.parse(json);
      return [run, checkRecord(run, words)];
    } catch {
      return [null, words.notJson];
    }
  };
  const take = async (file) => {
    if (!file) return;
    say("");
    if (file.size > MOST_BYTES) return say(filled(words.tooLarge, { file: file.name }), true);
    const text = await file.text().catch(() => null);
    const [run, refusal] = text === null ? [null, words.notRead] : parsed(text);
    if (refusal) return say(`${file.name}: ${refusal}`, true);
    say(filled(words.opened, { file: file.name }));
    open(run, "race", "file");
    document.getElementById("tab-race")?.focus(); // this view, and the focus with it, has just been hidden
  };
  const drop = filePicker({ accept: ".json,.html,application/json,text/html", choose: words.choose, orDrop: words.orDrop, hint: words.local, take });

  const card = (title, sentence, ...buttons) =>
    make("div", { class: "k-file" }, make("h4", { text: title }), make("p", { text: sentence }), make("div", { class: "k-buttons" }, ...buttons));
  const files = make("div", { class: "k-files" },
    card(words.reportHead, words.reportSentence, button(words.reportButton, saveReport)),
    card(words.jsonHead, words.jsonSentence, button("JSON", () => save(".json", JSON.stringify(record), "application/json"))),
    card(words.csvHead, words.csvSentence, button("CSV", () => save("-steps.csv", stepsCsv(record), "text/csv"))),
    ...page.charts.map((chart) => card(chart.label, chart.note,
      ...["png", "svg"].map((format) =>
        button(format.toUpperCase(), () => saveChart(chart, format), filled(words.chartLabel, { chart: chart.label, format: format.toUpperCase() }))))));
  const away = make("div", { class: "k-part", hidden: "" }, make("h3", { text: words.takeHead }), files);
  const node = make("div", { class: "k-view k-export" }, away,
    make("div", { class: "k-part" }, make("h3", { text: words.openHead }), drop), status);
  return {
    node,
    show(shown) {
      record = shown;
      away.hidden = false;
    },
  };
};
