// The tokens of one or two ways, one above the other: a row a prompt, drawn in chunks.

const makeProofTokens = ({ words, box, record, ways }) => {
  const CHUNK = 500;
  const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 0, ArrowUp: 0 };
  const prompts = record.settings.prompts;
  const byRow = ways.map((way) => Object.groupBy(way.result.steps.flatMap((step) => step.new_tokens), ({ row }) => row));

  const visible = (id, text) => text === "" ? `#${id}` : text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  // One token of one way; `facts` is what the box shows.
  const tokenNode = (way, token, at, marks) => {
    const text = visible(token.id, record.texts[token.id] ?? token.text);
    const label = [filled(words.token, { letter: way.letter, n: at + 1, text }), ...marks].join(", ");
    const options = { class: `k-tok k-hue-${hue(way)}`, role: "button", tabindex: "-1", text, "aria-label": label };
    return Object.assign(make("span", options), { facts: { way, token, text } });
  };
  const gap = () => make("span", { class: "k-tok k-gap", text: "–" });

  // Two lines of tokens: where they differ, first and at all, and whether they are the same to the end.
  const compared = (lines) => {
    const length = Math.max(0, ...lines.map((line) => line.length));
    // A way that was stopped has no end of its own: what it lacks there is no difference.
    const differs = (at) => lines.length === 2 && lines[0][at]?.id !== lines[1][at]?.id
      && lines.every((line, side) => line[at] || ways[side].ended === "done");
    let first = 0;
    while (first < length && !differs(first)) first += 1;
    return { length, differs, first, isSame: lines.length === 2 && first === length && lines[0].length === lines[1].length };
  };
  const cellOf = (lines, { differs, first, isSame }, at) => {
    const different = differs(at);
    const marks = !different ? [] : [at === first ? words.firstDifference : words.differs];
    const kind = !different ? "" : at === first ? " k-first" : " k-differs";
    return make("span", { class: `k-cell${kind}`, "data-at": at },
      ...(isSame ? lines.slice(0, 1) : lines).map((line, side) =>
        line[at] ? tokenNode(ways[side], line[at], at, marks) : gap()));
  };
  const legend = (isSame) => make("span", { class: "k-cell k-legend", "aria-hidden": "true" },
    ...(isSame ? [make("b", { text: ways.map(({ letter }) => letter).join("=") })] : ways.map(mark)));

  // Arrow keys go from token to token; Tab comes to one of them, the one that was last on.
  const listen = (tokens) => {
    const stopAt = (node) => {
      tokens.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
      node?.setAttribute("tabindex", "0");
    };
    tokens.addEventListener("keydown", (event) => {
      const cell = event.target.closest(".k-cell");
      const ends = { Home: tokens.querySelector("[data-at]"), End: tokens.lastElementChild };
      if (!cell || !(event.key in STEPS || event.key in ends)) return;
      event.preventDefault();
      const to = ends[event.key] ?? tokens.querySelector(`[data-at="${Number(cell.dataset.at) + STEPS[event.key]}"]`);
      const side = { ArrowUp: 0, ArrowDown: 1 }[event.key] ?? [...cell.children].indexOf(event.target);
      (to?.children[side]?.facts ? to.children[side] : to?.querySelector("[role]"))?.focus();
    });
    tokens.addEventListener("focusin", ({ target }) => { stopAt(target); box.show(target); });
    tokens.addEventListener("focusout", box.hide);
    tokens.addEventListener("mouseover", ({ target }) => target.facts ? box.show(target) : box.hide());
    tokens.addEventListener("mouseleave", box.hide);
    return stopAt;
  };

  const countOf = (lines, isSame) => {
    const [first, second] = lines.map((line) => line.length);
    if (!first && !second) return words.noTokens;
    if (isSame) return filled(words.same, { n: first });
    return lines.length === 2 && first !== second ? filled(words.counts, { first, second }) : filled(words.count, { n: first });
  };

  return prompts.map((prompt, row) => {
    const lines = byRow.map((rows) => rows[row] ?? []);
    const found = compared(lines);
    const tokens = make("div", { class: "k-tokens", role: "group", "aria-label": filled(words.tokens, { n: row + 1 }) }, legend(found.isSame));
    const more = make("button", { type: "button", class: "k-more", on: { click: () => grow() } });
    let drawn = 0;
    const grow = (until = drawn + CHUNK) => {
      const from = drawn;
      drawn = Math.min(found.length, until);
      for (let at = from; at < drawn; at += 1) tokens.append(cellOf(lines, found, at));
      more.hidden = drawn === found.length;
      setText(more, filled(words.more, { n: Math.min(CHUNK, found.length - drawn), left: found.length - drawn }));
    };
    const tokenAt = (at) => tokens.querySelector(`[data-at="${at}"] [role]`);
    const stopAt = listen(tokens);
    grow();
    stopAt(tokenAt(found.first) ?? tokenAt(0));
    const node = make("article", { class: "k-proof-row", "data-row": row },
      make("header", {}, make("h4", { text: filled(words.prompt, { n: row + 1 }) }),
        make("span", { class: "k-proof-prompt", text: prompt }), make("small", { text: countOf(lines, found.isSame) })),
      ...(found.length ? [tokens, more] : []));
    return { node, reveal(at) { if (at >= drawn) grow(at + CHUNK); tokenAt(at)?.focus(); } };
  });
};
