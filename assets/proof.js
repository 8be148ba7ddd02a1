// The proof: two ways of a run, token by token, and what it means where they part.

const makeProof = ({ words, page }) => {
  const SIGNS = { identical: "=", "near-tie": "≈", fault: "≠", ended: "⊣", none: "○" };
  const node = make("div", { class: "k-view k-proof" });
  let record = null;
  let picked = []; // the keys of the two ways
  const box = makeTokenBox({ words, texts: () => record.texts });
  const body = make("div", { class: "k-proof-body" });
  node.addEventListener("keydown", ({ key }) => key === "Escape" && box.hide());

  const comparisonOf = (first, second) => record.comparisons.find((found) =>
    (found.first === first && found.second === second) || (found.first === second && found.second === first));

  // The pair to begin with: one that parts, the gravest first; else the first two ways.
  const telling = () => {
    for (const verdict of ["fault", "near-tie", "ended"]) {
      const found = record.comparisons.find((each) => each.verdict === verdict);
      if (found) return [found.first, found.second];
    }
    return record.ways.filter(tellsIds).slice(0, 2).map(({ key }) => key);
  };

  const choose = (side, key) => {
    if (key === picked[1 - side]) picked.reverse(); // a way is not compared with itself: they change places
    else picked[side] = key;
    draw();
    body.querySelectorAll("select")[side].focus();
  };
  const chooser = (side) => make("label", {},
    make("span", { text: side ? words.second : words.first }), mark(wayOf(record, picked[side])),
    make("select", { on: { change: ({ target }) => choose(side, target.value) } },
      ...record.ways.filter(tellsIds).map(({ key, letter, label }) =>
        make("option", { value: key, text: `${letter} ${label}`, selected: key === picked[side] ? "" : null }))));

  const parting = (found, rows) => {
    const ids = { [found.first]: found.first_id, [found.second]: found.second_id };
    const item = (label, ...values) => make("div", {}, typeof label === "string" ? make("dt", { text: label }) : label, make("dd", {}, ...values));
    const candidate = (key) => {
      const way = wayOf(record, key);
      const text = ids[key] === null ? words.hadEnded : `${JSON.stringify(record.texts[ids[key]] ?? "")} · ${filled(words.id, { id: ids[key] })}`;
      return item(filled(words.takes, { letter: way.letter }), mark(way), make("span", { text }));
    };
    const where = filled(words.placeText, { row: found.row + 1, position: found.position + 1 });
    const goTo = make("button", { type: "button", class: "k-more", text: words.goTo, on: { click: () => rows[found.row].reveal(found.position) } });
    const meaning = filled(words.marginMeans, { letter: wayOf(record, found.first).letter });
    return make("dl", { class: "k-parting" },
      item(words.place, where, goTo), ...picked.map(candidate),
      item(term(words.margin, meaning, "dt"), digits(found.margin)),
      item(term(words.largest, words.largestMeans, "dt"), digits(found.largest_difference)));
  };

  const verdict = (found) => {
    const kind = found?.verdict ?? "none";
    const name = (found?.other_weights && words.otherWeights[kind]) || words.verdicts[kind];
    const sentence = found?.sentence ?? (picked.length < 2 ? words.alone : words.unfinished);
    return make("div", { class: "k-proof-verdict", "data-verdict": kind, role: "status" },
      make("p", { class: "k-proof-badge" }, make("i", { "aria-hidden": "true", text: SIGNS[kind] }), make("b", { text: name })),
      make("p", { text: sentence }));
  };

  const draw = () => {
    box.hide();
    const ways = picked.map((key) => wayOf(record, key));
    const found = picked.length === 2 ? comparisonOf(...picked) : undefined;
    const rows = makeProofTokens({ words, box, record, ways });
    body.replaceChildren(
      ...(record.bug ? [makeLabPanel(page.words.lab, record)] : []),
      make("div", { class: "k-pickers" }, ...picked.map((_, side) => chooser(side))),
      verdict(found),
      ...(found && found.row !== null ? [parting(found, rows)] : []),
      make("p", { class: "k-soft", text: words.how }),
      ...rows.map((row) => row.node));
  };

  node.append(body, box.node);
  return {
    node,
    show(shown) {
      record = shown;
      picked = telling();
      draw();
    },
  };
};
