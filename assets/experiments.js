// The page's other part: experiments whose results come with Kshipra, and whoever's file. Built when somebody comes here;
// a report is asked of the server when one is opened. The value is its answer, a line that kshipra/ui/shelf.py tells.

const { words, shelf, most_bytes: mostBytes } = props.page;
const HERE = "#experiments";
const root = element.querySelector(".k-experiments");
root.setAttribute("aria-label", words.label);

let pending = null; // what is being opened
let shown = null; // what is open

const findings = makeFindings(words, props.page.plotly);
const status = make("p", { class: "k-said", role: "status" });
const say = (text, refused = false) => {
  status.classList.toggle("k-refused", refused);
  setText(status, text);
};
const ask = (what, name) => {
  if (pending !== null) return; // Gradio drops it while its last event is not over
  pending = name;
  say(filled(words.reading, { file: name }));
  trigger("submit", what);
};

// What comes with Kshipra

const results = (each) => each.models.map((model) => {
  const name = `${model}/${each.name}`;
  return make("button", {
    type: "button", class: "k-button", text: model, "aria-pressed": "false", "aria-label": `${model}: ${each.title}`, "data-name": name,
    on: { click: () => ask({ shipped: name }, name) },
  });
});
const command = (name) => make("p", { class: "k-small" }, `${words.command} `, make("code", { text: `python -m kshipra experiments ${name}` }));
const card = (each) => make("li", {}, make("h3", { text: each.title }), make("p", { text: each.question }),
  each.models.length ? make("div", { class: "k-buttons", role: "group", "aria-label": filled(words.results, each) }, ...results(each)) : command(each.name));

// A file

const take = async (file) => {
  if (!file || pending !== null) return;
  const name = file.name;
  if (file.size > mostBytes) return say(filled(words.tooLarge, { file: name, most: mostBytes >> 20 }), true);
  const text = await file.text().catch(() => null);
  if (text === null) return say(filled(words.notRead, { file: name }), true);
  ask({ text, name }, name);
};
const drop = filePicker({ accept: ".json,application/json", choose: words.choose, orDrop: words.orDrop, hint: words.private, take });

const build = () => root.append(
  make("header", {}, make("h2", { text: words.heading }), make("p", { text: words.sentence })),
  make("ul", { class: "k-shelf" }, ...shelf.map(card)),
  make("section", { class: "k-open-results" }, make("h3", { text: words.openHead }), drop, status),
  findings.node);

// Answers

const read = () => {
  if (!props.value || pending === null) return;
  const [kind, , answer] = JSON.parse(props.value);
  const name = pending;
  pending = null;
  if (kind === "refused") return say(answer, true);
  shown = name;
  for (const button of root.querySelectorAll("[data-name]")) button.setAttribute("aria-pressed", String(button.dataset.name === shown));
  say(filled(words.shown, { file: name }));
  findings.show(answer);
};
watch("value", read);
document.addEventListener("kshipra:report-lost", () => {
  pending = null;
  say(words.lost, true);
});

// Which part of the page is shown: the address says it, so that it can be linked to and gone back from.

const go = () => {
  const here = location.hash === HERE;
  root.hidden = !here; // and the bench with it, by experiments.css
  if (here && !root.firstChild) build();
};
addEventListener("hashchange", () => {
  go();
  scrollTo(0, 0);
  dispatchEvent(new Event("resize")); // charts that were drawn unseen
});
go();
