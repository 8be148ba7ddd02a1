// The stage: reads the run's lines of JSON from where it was and draws them. Lines are told by kshipra/ui/view.py.

const page = props.page;
const { words } = page;
const SETTLED = ["idle", "done", "stopped", "failed"];

const charts = makeCharts(page);
const columnsNode = make("div", { class: "k-columns" });
const summaryNode = make("section", { id: "summary", "aria-label": "Summary" }, make("p", { class: "k-empty", text: words.summaryIdle }));
element.querySelector(".k-stage").append(columnsNode, make("div", { class: "k-charts" }, ...charts.nodes), summaryNode);
explainOnHover(element);

let columns = [];
let recipes = [];
let status = "idle";
let active = null; // the way whose rate stands beside the status
let firstLine = null;
let offset = 0;
let pending = false; // Gradio drops a click while its last event is not over
let gone = false; // the server

// Buttons and status

const button = (id) => document.querySelector(`button#${id}, #${id} button`);
const setStatus = (state, text) => {
  if (status === "stopping" && !SETTLED.includes(state)) return; // the run goes on until its last step
  status = state;
  const node = document.getElementById("status");
  if (node) {
    node.dataset.state = state;
    setText(node.lastElementChild, text);
  }
  setButtons();
};
const setButtons = () => {
  const [run, stop, plant] = [button("run"), button("stop"), button("plant")];
  if (!run || !stop) return;
  const focus = document.activeElement;
  run.disabled = pending || gone || !SETTLED.includes(status);
  if (plant) plant.disabled = run.disabled; // one run at a time, whichever button began it
  stop.disabled = SETTLED.includes(status) || status === "starting";
  if ((focus === run || focus === plant) && run.disabled && !stop.disabled) stop.focus();
  if (focus === stop && stop.disabled) run.focus();
};
const setRate = (text) => {
  const node = document.getElementById("live-rate");
  if (node) setText(node, text);
};

// Columns

const showColumns = (chosen, prompts, more = []) => { // `more`: figures that not every way has, a list a way
  recipes = chosen;
  columns = recipes.map((recipe, way) => makeColumn(page, recipe, prompts, more[way]));
  columnsNode.replaceChildren(...columns.map(({ node }) => node));
  spread(columnsNode, columns.length);
};
let form = { prompts: [], recipes: page.picked };
const preview = (change) => {
  form = { ...form, ...change };
  if (firstLine !== null) return; // a run's texts stay until the next run
  showColumns(page.recipes.filter(({ key }) => form.recipes.includes(key)), form.prompts.map((prompt) => [prompt].flat()[0]));
  columns.forEach((made) => made.state("waiting", "ready"));
};

// Summary

const showSummary = ({ same, headline, verdict, rows }) => {
  const [first, ...all] = page.summary.map(({ label, definition }) => term(label, definition));
  const [heads, ...cells] = inOrder(all, rows.map((row) => row[2]), page.summary_order);
  const body = rows.map(([key, excluded], at) => wayRow(recipes.find((recipe) => recipe.key === key), excluded, cells[at]));
  summaryNode.replaceChildren(
    make("div", { class: "k-verdict", "data-same": String(same) },
      ...(headline ? [make("p", { class: "k-headline", text: headline })] : []),
      ...verdict.map((text) => make("p", { text }))),
    ...(rows.length
      ? [make("div", { class: "k-table", tabindex: "0", role: "region", "aria-label": words.details },
          tableOf([first, ...heads], body))]
      : []),
  );
};

// Lines

let chartsDirty = false;
const handlers = {
  run(id, facts) {
    showColumns(facts.recipes.map((key) => page.recipes.find((recipe) => recipe.key === key)), facts.prompts, facts.figures);
    columns.forEach((made) => made.state("queued", "queued"));
    charts.start(id, recipes, facts.ragged);
    summaryNode.replaceChildren(make("p", { class: "k-empty", text: words.summaryIdle }));
    active = null;
  },
  refused(id, sentence) { setStatus("failed", sentence); },
  status: setStatus,
  model(text) { document.dispatchEvent(new CustomEvent("kshipra:model", { detail: text })); },
  state(way, word, text) {
    columns[way].state(word, text);
    if (word === "prefill" || word === "decoding") active = way;
  },
  note: (way, sentence) => columns[way].note(sentence),
  why: (way, sentence) => columns[way].why(sentence),
  t: (way, row, text, guessed) => columns[way].append(row, text, guessed),
  end: (way, row, reason) => columns[way].end(row, reason),
  f(way, strings) {
    columns[way].figures(strings);
    if (way === active) setRate(strings[0] === "–" ? "" : `${strings[0]} ${page.figures[0].label}`);
  },
  p(way, points) { charts.add(way, points); chartsDirty = true; },
  summary: showSummary,
  over() {
    setRate("");
    chartsDirty = false;
    charts.draw(true);
  },
};

const read = (value) => {
  if (!value) return;
  gone = false;
  connection.heard();
  if (firstLine === null || !value.startsWith(firstLine)) {
    const end = value.indexOf("\n") + 1;
    if (!end) return;
    const isRefusal = value.startsWith('["refused"');
    if (!isRefusal) status = "queued";
    [firstLine, offset] = [isRefusal ? firstLine : value.slice(0, end), 0];
  }
  const end = value.lastIndexOf("\n") + 1;
  for (const text of value.slice(offset, end).split("\n")) {
    if (!text) continue;
    const [kind, ...rest] = JSON.parse(text);
    handlers[kind](...rest);
  }
  offset = end;
  columns.forEach((made) => made.follow());
  if (chartsDirty) charts.draw();
  chartsDirty = false;
};

watch("value", () => read(props.value));

// What of a run had come stays when its server goes away.
const connection = watchServer({
  waits: () => !SETTLED.includes(status),
  holds: () => firstLine !== null,
  lose() {
    gone = true;
    for (const column of columns) if (!column.isOver()) column.state("failed", words.brokenOff);
    handlers.over();
    status = "failed"; // whatever was being stopped
    setStatus("failed", words.gone);
  },
});

// What happens around the stage

document.addEventListener("click", ({ target }) => {
  if (target.closest?.("#run, #plant") && SETTLED.includes(status)) {
    pending = true;
    setStatus("starting", words.starting);
  }
  if (target.closest?.("#stop") && !SETTLED.includes(status)) setStatus("stopping", words.stopping);
}, true);
document.addEventListener("kshipra:settled", () => {
  setRate("");
  pending = false;
  const whole = SETTLED.includes(status);
  setStatus(whole ? status : "failed", whole ? document.getElementById("status").textContent : words.lost);
});
document.addEventListener("kshipra:lab", () => setTimeout(setButtons));
document.addEventListener("kshipra:form", ({ detail }) => preview(detail));

endLoadingTimer();
preview({});
const whenButtonsAreThere = () => {
  if (button("run") && button("stop") && document.getElementById("status")) setStatus(status, document.getElementById("status").textContent);
  else requestAnimationFrame(whenButtonsAreThere);
};
whenButtonsAreThere();
document.dispatchEvent(new CustomEvent("kshipra:stage"));
read(props.value);
