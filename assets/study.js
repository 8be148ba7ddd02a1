// The study: views of one run's document, behind tabs. A document comes from the run that has just ended, from a file,
// from a recorded run, or from an earlier one; every view shows the same.

const { words } = props.page;
const VIEWS = {
  race: makeRace, timeline: makeTimeline, proof: makeProof, prediction: makePrediction, export: makeExport, history: makeHistory,
};
const root = element.querySelector(".k-study");
root.setAttribute("aria-label", words.label);
root.setAttribute("role", "region");

let shownRecord = null;
let current = "race";
const views = {};
const tabs = {};
const caption = make("p", { class: "k-study-caption" });

const select = (key, focus = false) => {
  current = key;
  for (const [name, tab] of Object.entries(tabs)) {
    tab.setAttribute("aria-selected", String(name === key));
    tab.tabIndex = name === key ? 0 : -1;
    views[name].panel.hidden = name !== key;
  }
  if (focus) tabs[key].focus();
  if (shownRecord && !views[key].fresh) {
    views[key].view.show(shownRecord);
    views[key].fresh = true;
  }
};

// Show a document; what is not on screen is drawn when its tab is opened.
// `source`: "run" (it has just ended here), "file", "recorded".
const open = (record, tab = current, source = "file") => {
  shownRecord = record;
  for (const { view } of Object.values(views)) view.opened?.(record, source);
  setText(caption, filled(words.shown, {
    model: record.model.spec.name, machine: record.machine.processor,
    when: new Date(record.taken_at).toLocaleString(),
  }));
  for (const view of Object.values(views)) view.fresh = false;
  root.classList.remove("k-left-out");
  root.classList.add("k-filled");
  select(tab);
};

const list = make("div", { class: "k-tabs", role: "tablist", "aria-label": words.label });
const panels = [];
for (const [key, makeView] of Object.entries(VIEWS)) {
  const view = makeView({ words: words[key], open, page: props.page });
  const panel = make("div", { role: "tabpanel", id: `study-${key}`, "aria-labelledby": `tab-${key}`, hidden: "" }, view.node);
  views[key] = { view, panel, fresh: false };
  tabs[key] = make("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `study-${key}`, text: words.tabs[key],
    on: { click: () => select(key) },
  });
  panels.push(panel);
}
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
list.append(...Object.values(tabs));
list.addEventListener("keydown", ({ key }) => {
  if (!(key in STEPS)) return;
  const names = Object.keys(tabs);
  select(names.at((names.indexOf(current) + STEPS[key]) % names.length), true);
});
const idle = make("p", { class: "k-empty k-study-idle", text: words.idle });
root.append(list, caption, idle, ...panels);
explainOnHover(root);
select(current);

const read = () => {
  if (!props.value) return;
  const record = JSON.parse(props.value);
  if (record.left_out) {
    root.classList.add("k-left-out"); // what is shown stays the run before, and its caption says so
    setText(idle, record.left_out);
  } else open(record, record.bug ? "proof" : current, "run"); // a planted fault is there to be seen
};
watch("value", read);
read();
