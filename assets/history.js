// This run beside an earlier one of this browser: other settings, another model, another machine.

const makeHistory = ({ words }) => {
  const store = makeRunStore();
  const NEAR = 0.05; // a difference that small is no news
  const SHOWN = { ttft_s: seconds, p50: seconds, peak_extra_bytes: bytes, kv_bytes: bytes };
  const MORE_IS_BETTER = { end_to_end_tok_per_s: true, decode_tok_per_s: true, ttft_s: false, p50: false, peak_extra_bytes: false, kv_bytes: false };
  let now = null; // summary of the run shown
  let chosen = null;

  const date = (run) => new Date(run.when).toLocaleString();
  const where = (run) => filled(run.device === "cpu" ? words.cpu : words.where, run);
  const isNow = (run) => now !== null && store.isSame(now)(run);

  // The list

  const item = (run) => {
    const radio = make("input", {
      type: "radio", name: "k-earlier",
      on: {
        change: () => {
          chosen = run;
          drawComparison();
        },
      },
    });
    radio.checked = chosen !== null && store.isSame(chosen)(run);
    radio.disabled = isNow(run);
    const forget = make("button", {
      type: "button", class: "k-quiet", text: words.remove, "aria-label": filled(words.removeLabel, { when: date(run) }),
      on: { click: () => remove(run) },
    });
    return make("li", { class: isNow(run) ? "k-now" : null },
      make("label", {}, radio,
        make("span", {}, make("b", { text: run.model }), make("span", { text: where(run) }), make("span", { class: "k-when", text: date(run) }),
          ...(isNow(run) ? [make("small", { class: "k-badge", text: words.this })] : [])),
        make("span", {}, make("span", { text: run.settings }), ...run.ways.map(mark))),
      forget);
  };

  const remove = (run) => {
    const at = store.all().findIndex(store.isSame(run));
    store.remove(run);
    draw();
    const buttons = [...rows.querySelectorAll("button")]; // the focus goes to its neighbour, not to nowhere
    (buttons[Math.min(at, buttons.length - 1)] ?? node).focus();
  };

  let asked = false;
  const ask = (yes) => {
    asked = yes;
    setText(clear, yes ? filled(words.confirm, { n: store.all().length }) : words.clear);
  };
  const clear = make("button", {
    type: "button", class: "k-quiet",
    on: {
      blur: () => ask(false),
      click: () => {
        if (!asked) return ask(true);
        store.clear();
        draw();
        node.focus();
      },
    },
  });

  // The comparison

  const differences = (before) => {
    const differing = Object.keys(words.facts).filter((name) => name === "prompts" ? now.prompts_hash !== before.prompts_hash : now[name] !== before[name]);
    if (!differing.length) return make("p", { text: words.same });
    const text = (run, name) => name === "prompts" ? (run === now ? String(run.prompts) : `${run.prompts}, ${words.otherPrompts}`) : String(run[name]);
    const rows = differing.map((name) => make("tr", {}, make("th", { scope: "row", text: words.facts[name] }),
      ...[now, before].map((run) => make("td", { text: text(run, name) }))));
    return make("div", { class: "k-table k-texts-table", tabindex: "0", role: "region", "aria-label": words.differs },
      tableOf([words.differs, words.now, words.before], rows));
  };

  const tokens = (one, other, before) => {
    if (now.model !== before.model) return words.otherModel;
    if (now.settings_hash !== before.settings_hash) return words.otherSettings;
    if (one.ended !== "done" || other.ended !== "done") return words.notWhole;
    return one.tokens_hash === other.tokens_hash ? words.sameTokens : words.otherTokens;
  };

  const ratioCell = (name, one, other) => {
    if (one === null || other === null || other === 0) return make("td", { text: "–" });
    const ratio = one / other;
    const isNews = name in MORE_IS_BETTER && Math.abs(ratio - 1) > NEAR;
    const isBetter = ratio > 1 === MORE_IS_BETTER[name];
    return make("td", { class: isNews ? (isBetter ? "k-better" : "k-worse") : null },
      make("b", { text: `${digits(ratio)}×` }), ...(isNews ? [make("small", { text: isBetter ? words.better : words.worse })] : []));
  };

  const wayTable = (one, other, before) => {
    const lines = FIGURES_OF_A_RUN.map((name) => make("tr", {}, make("th", { scope: "row", text: words.figures[name] }),
      ...[one, other].map((way) => make("td", { text: (SHOWN[name] ?? digits)(way[name]) })), ratioCell(name, one[name], other[name])));
    return make("section", { class: `k-pair-of-runs k-hue-${hue(one)}`, "aria-label": one.label },
      make("header", {}, mark(one), make("h4", { text: one.label })),
      tableOf([words.figure, words.now, words.before, words.ratio], lines),
      make("p", { text: tokens(one, other, before) }));
  };

  const comparison = make("div", { class: "k-part", role: "region", "aria-label": words.choose });
  const drawComparison = () => {
    if (now === null || chosen === null) return comparison.replaceChildren();
    const inBoth = (run, other) => run.ways.filter(({ key }) => other.ways.some((way) => way.key === key));
    const only = (run, other, sentence) => {
      const ways = run.ways.filter(({ key }) => !other.ways.some((way) => way.key === key)).map(({ letter, label }) => `${letter} ${label}`);
      return ways.length ? [make("p", { class: "k-empty", text: filled(sentence, { ways: ways.join(", ") }) })] : [];
    };
    comparison.replaceChildren(
      make("h3", { text: filled(words.against, { when: date(chosen) }) }), differences(chosen),
      make("div", { class: "k-pairs-of-runs" },
        ...inBoth(now, chosen).map((way) => wayTable(way, chosen.ways.find(({ key }) => key === way.key), chosen))),
      ...only(now, chosen, words.onlyNow), ...only(chosen, now, words.onlyBefore));
  };

  const rows = make("ul", { class: "k-runs", "aria-label": words.choose });
  const note = make("p", { class: "k-empty" });
  const node = make("div", { class: "k-view k-history", tabindex: "-1" },
    make("div", { class: "k-part" },
      make("div", { class: "k-runs-head" }, make("p", { text: filled(words.sentence, { most: store.MOST }) }), clear), rows, note),
    comparison);

  const draw = () => {
    const runs = store.all();
    const others = runs.filter((run) => !isNow(run));
    if (chosen && !others.some(store.isSame(chosen))) chosen = null;
    chosen ??= now && (others[0] ?? null);
    rows.replaceChildren(...runs.map(item));
    clear.hidden = !runs.length;
    ask(false);
    const notes = [others.length ? (now ? "" : words.notShown) : words.none, store.isKept() ? "" : words.notKept];
    setText(note, notes.filter(Boolean).join(" "));
    drawComparison();
  };
  draw();
  return {
    node,
    opened(record, source) {
      if (source === "run") store.add(runSummary(record, words.settings));
    },
    show(record) {
      now = runSummary(record, words.settings);
      draw();
    },
  };
};
