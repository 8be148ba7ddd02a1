// A column a way: head, figures, and the texts of all prompts.

const makeRow = (words, number, prompt) => {
  const promptNode = make("span", { class: "prompt", text: prompt });
  const newNode = make("span", { class: "new" });
  const note = make("small", { class: "k-note" });
  const copy = make("button", {
    type: "button",
    class: "k-copy",
    text: words.copy,
    "aria-label": words.copyLabel.replace("{n}", number + 1),
    on: {
      click: async () => {
        if (!await copyText(promptNode.textContent + newNode.textContent)) return;
        copy.textContent = words.copied;
        setTimeout(() => (copy.textContent = words.copy), 1200);
      },
    },
  });
  const node = make(
    "article",
    { "data-row": number, class: "k-row" },
    make("span", { class: "k-number", text: number + 1, "aria-hidden": "true" }),
    make("p", {}, promptNode, newNode, note),
    copy,
  );
  return { node, newNode, note };
};

// What was the newest text becomes plain text, beside what came before it. It stands out by its colour and not by fading
// in: an animation draws sixty frames a second, on the machine that computes.
// Only what was guessed keeps a place of its own.
const settle = ({ newNode }) => {
  const fresh = newNode.querySelector(".k-fresh");
  if (!fresh) return;
  const before = fresh.previousSibling;
  if (fresh.classList.contains("k-guessed")) fresh.classList.remove("k-fresh");
  else if (before?.nodeType === Node.TEXT_NODE) {
    before.appendData(fresh.textContent);
    fresh.remove();
  } else fresh.replaceWith(fresh.textContent);
};

const makeColumn = (page, recipe, prompts, more = []) => {
  const { words } = page;
  const badge = make("span", { class: "k-badge" });
  const values = page.figures.map(() => make("dd", { text: "–" }));
  const rows = prompts.map((prompt, number) => makeRow(words, number, prompt));
  let followedTo = 0; // where the texts were scrolled to by themselves
  let newest = null;
  const follow = () => {
    const node = newest;
    newest = null;
    if (!node) return;
    const atBottom = texts.scrollHeight - texts.scrollTop - texts.clientHeight < 24;
    if (!atBottom && texts.scrollTop !== followedTo) return; // someone is reading further up
    const below = node.getBoundingClientRect().bottom - texts.getBoundingClientRect().bottom + 12;
    if (below > 0) texts.scrollTop += below;
    followedTo = texts.scrollTop;
  };
  const texts = make(
    "div",
    { class: "k-texts", tabindex: "0", role: "group", "aria-label": words.textsLabel.replace("{way}", recipe.label) },
    ...rows.map((row) => row.node),
  );
  const figures = make(
    "dl",
    { class: "k-figures" },
    ...page.figures.flatMap(({ key, label, definition, more: isMore }, at) => isMore && !more.includes(key) ? []
      : [make("div", { class: `k-figure k-${key}` }, term(label, definition, "dt"), values[at])]),
  );
  const sentence = make("p", { class: "k-sentence", text: recipe.sentence });
  const why = recipe.why ? [term(words.why, recipe.why, "small")] : [];
  const node = make(
    "section",
    { id: `column-${recipe.key}`, class: `k-column k-hue-${hue(recipe)}`, "aria-label": recipe.label },
    make("header", {}, mark(recipe), make("h3", { text: recipe.label }), ...why, badge),
    sentence,
    figures,
    texts,
  );
  return {
    node,
    state(word, text) {
      node.dataset.state = word;
      setText(badge, text);
    },
    isOver: () => ["done", "stopped", "failed", "unavailable"].includes(node.dataset.state),
    note: (text) => setText(sentence, `${recipe.sentence} ${text}`),
    why(text) {
      setText(sentence, text);
      sentence.classList.add("k-why");
    },
    figures: (strings) => strings.forEach((text, at) => setText(values[at], text)),
    append(row, text, guessed) {
      settle(rows[row]);
      newest = make("span", { class: guessed ? "k-guessed k-fresh" : "k-fresh", text });
      rows[row].newNode.append(newest);
    },
    end(row, reason) {
      settle(rows[row]);
      setText(rows[row].note, ` · ${reason}`);
      newest = rows[row].note;
    },
    follow,
  };
};
