// The page's third part: a visitor's conversation, and the batch that it shares with everybody's. Its value is what
// kshipra/ui/live_view.py tells, lines with a number each; what the visitor wants goes back as an event.

const { words, most_chars: mostChars, most_tokens: mostTokens } = props.page;
const HERE = "#live", AGAIN_MS = 3000;
const root = element.querySelector(".k-live");
root.setAttribute("aria-label", words.label);

let number = 0; // of the next message
let [firstLine, offset, taken] = [null, 0, -1];
const said = new Map(); // messages that may still be refused

// What is wanted goes out one after another, each when the one before has been taken, and again where it got lost.
const outbox = [];
let [wishes, askedAt, gone] = [0, 0, false];
const ask = () => {
  if (gone || taken < 0 || !outbox.length) return; // the server does not know this tab yet, or any more
  askedAt = Date.now();
  trigger("act", outbox[0]);
};
const act = (wish) => {
  outbox.push({ wish: wishes, number, ...wish });
  wishes += 1;
  if (outbox.length === 1) ask();
};
setInterval(() => { if (Date.now() - askedAt > AGAIN_MS) ask(); }, AGAIN_MS);
const turns = makeTurns(words, props.page.turn_figures, (own) => act({ do: "stop", number: own }));
const chart = makeLiveChart(words, props.page.places, props.page.window_s);
const status = make("p", { class: "k-said", role: "status" });
const say = (text) => {
  status.classList.toggle("k-refused", Boolean(text));
  setText(status, text);
};
const setGone = (is) => {
  gone = is;
  for (const button of form.querySelectorAll("button")) button.disabled = is;
};
const lose = () => {
  setGone(true);
  turns.breakOff();
  say(words.lost);
};
const connection = watchServer({
  waits: () => !gone && (outbox.length > 0 || turns.isWaiting()), holds: () => !turns.isEmpty(), lose,
});

// What a visitor fills in

const field = make("textarea", {
  id: "live-say", rows: 2, maxlength: mostChars, placeholder: words.sayHint, "aria-label": words.say,
  on: {
    keydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    },
  },
});
const numberField = (id, label, value, options) =>
  make("label", {}, label, make("input", { id, type: "number", value, ...options }));
const tokens = numberField("live-tokens", words.tokens, 64, { min: 1, max: mostTokens, step: 1 });
const temperature = numberField("live-temperature", words.temperature, 0, { min: 0, max: 2, step: 0.1 });
const numberOf = (label) => label.lastElementChild.value === "" ? null : Number(label.lastElementChild.value);

const send = () => {
  const text = field.value;
  if (gone || !text.trim()) return field.focus();
  say("");
  said.set(number, text);
  turns.say(number, text);
  act({ do: "send", text, tokens: numberOf(tokens), temperature: numberOf(temperature) });
  number += 1;
  field.value = "";
  field.focus();
};
const form = make("form", { class: "k-live-form", on: { submit: (event) => { event.preventDefault(); send(); } } },
  field,
  make("div", { class: "k-live-controls" },
    make("button", { type: "submit", id: "live-send", class: "k-button k-live-send", text: words.send }),
    tokens, temperature,
    make("button", {
      type: "button", id: "live-new", class: "k-button", text: words.fresh,
      on: { click: () => { act({ do: "forget" }); said.clear(); turns.clear(); say(""); field.focus(); } },
    })));

// What everybody sees

const values = props.page.batch_figures.map(() => make("dd", { text: "–" }));
const figures = make("dl", { class: "k-live-figures" },
  ...props.page.batch_figures.map(({ label, definition }, at) => make("div", {}, term(label, definition, "dt"), values[at])));

const build = () => {
  root.append(
    make("header", {}, make("h2", { text: words.heading }), make("p", { text: words.sentence })),
    make("div", { class: "k-live-both" },
      make("section", { class: "k-live-card", "aria-label": words.talk },
        make("h3", { text: words.talk }), turns.node, status, form, make("p", { class: "k-small", text: words.private })),
      make("section", { class: "k-live-card", "aria-label": words.batch },
        make("h3", { text: words.batch }), figures, chart.node)));
  explainOnHover(root);
  trigger("enter");
};

// Lines

const handlers = {
  took(wish) {
    if (outbox[0]?.wish !== wish) return;
    outbox.shift();
    ask();
  },
  model(text) { document.dispatchEvent(new CustomEvent("kshipra:model", { detail: text })); },
  turn(own, state, word, note, strings) {
    if (state !== "waiting") said.delete(own);
    turns.state(own, state, word, note, strings);
  },
  t: turns.tell,
  bar: chart.bar,
  now(time, running, own, strings) {
    strings.forEach((text, at) => setText(values[at], text));
    chart.show(time, running, own);
  },
  refused(own, sentence) {
    say(sentence);
    turns.withdraw(own);
    if (said.has(own) && !field.value) field.value = said.get(own); // nothing that was typed is lost
    said.delete(own);
  },
  nothing(sentence) {
    document.removeEventListener("kshipra:live-lost", lose);
    say(sentence);
  },
};
const read = (value) => {
  if (!value) return;
  if (gone) { // it was only slow
    setGone(false);
    say("");
  }
  connection.heard();
  if (firstLine === null || !value.startsWith(firstLine)) [firstLine, offset] = [value.slice(0, value.indexOf("\n") + 1), 0];
  const [isFirst, lines] = [taken < 0, value.slice(offset).split("\n")];
  offset = value.length;
  for (const text of lines) {
    if (!text) continue;
    const [kind, count, ...rest] = JSON.parse(text);
    if (count <= taken) continue; // seen before the text was cut at its start
    taken = count;
    handlers[kind](...rest);
  }
  if (isFirst) ask();
};
watch("value", () => read(props.value));
document.addEventListener("kshipra:live-lost", lose);

const go = () => {
  const here = location.hash === HERE;
  root.hidden = !here; // and the bench with it, by live.css
  if (!here) return;
  if (!root.firstChild) build();
  chart.draw();
};
addEventListener("hashchange", go);
go();
