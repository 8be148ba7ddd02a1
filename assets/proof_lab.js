// The bug lab's result: what was planted, which of the engine's checks catches it, and why.

const makeLabPanel = (words, record) => {
  const { bug, checks } = record;
  const FAMILIES = {
    learned: ["gpt2", "gpt_neo", "gpt_bigcode", "opt"],
    rotary: ["llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "gpt_neox", "stablelm", "olmo", "olmo2"],
  };
  const ways = ["healthy", "broken"].map((kind) => wayOf(record, `${bug.key}-${kind}`));
  const found = ["healthy", "broken"].map((kind) => checks[`${bug.key}-${kind}`] ?? []);

  const small = (value) => value > 0 && value < 1e-6 ? "< 0.000001" : digits(value); // rounding is not nothing
  const cell = (check) => {
    if (!check) return make("td", { text: "–" });
    const figures = filled(words.figures, { difference: small(check.largest_difference), tolerance: digits(check.tolerance) });
    return make("td", { class: check.passed ? "k-passed" : "k-caught" },
      make("b", { text: check.passed ? `✓ ${words.passed}` : `✗ ${words.caught}` }), make("small", { text: figures }));
  };
  const table = () => {
    const heads = [words.healthy, words.broken].map((label, side) =>
      make("span", {}, ...(ways[side] ? [mark(ways[side])] : []), make("span", { text: label })));
    const rows = found[1].map((check) => make("tr", { "data-check": check.name },
      make("th", { scope: "row", text: check.label }), cell(found[0].find(({ name }) => name === check.name)), cell(check)));
    return make("div", { class: "k-table", tabindex: "0", role: "region", "aria-label": words.checks },
      tableOf([words.check, ...heads], rows));
  };
  const catching = found[1].filter(({ passed }) => !passed).map(({ name, label }) => words.names[name] ?? label);
  const outcome = !found[1].length ? words.noChecks
    : catching.length ? filled(words.caughtBy, { checks: catching.join(", ") }) : words.caughtByNone;
  const { name, family } = record.model.spec;
  const positions = Object.keys(FAMILIES).find((kind) => FAMILIES[kind].includes(family));
  const lengths = new Set(ways[1]?.prompt_ids.map((ids) => ids.length));
  const noPads = bug.key.startsWith("pads-") && lengths.size < 2;
  return make("section", { class: "k-lab", "aria-label": filled(words.heading, { label: bug.label }) },
    make("h3", { text: filled(words.heading, { label: bug.label }) }), make("p", { text: bug.sentence }),
    ...(found[1].length ? [table()] : []),
    make("p", { class: "k-lab-outcome", text: outcome }),
    ...(noPads ? [make("p", { class: "k-lab-nopads", text: words.noPads })] : []),
    make("p", { text: filled(words.why, { why: bug.why }) }),
    ...(positions ? [make("p", { class: "k-lab-positions", text: filled(words.positions[positions], { model: name, family }) })] : []));
};
