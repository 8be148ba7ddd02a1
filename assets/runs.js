// Earlier runs: a small summary of each, kept in this browser alone. Its store may be missing, full, or hold anything.

// 53 bits of a text (Bryc's cyrb53): enough to tell a few runs apart; the browser's own hashes need a secure address.
const shortHash = (text) => {
  let [one, two] = [0xdeadbeef, 0x41c6ce57];
  for (let at = 0; at < text.length; at++) {
    one = Math.imul(one ^ text.charCodeAt(at), 2654435761);
    two = Math.imul(two ^ text.charCodeAt(at), 1597334677);
  }
  one = Math.imul(one ^ (one >>> 16), 2246822507) ^ Math.imul(two ^ (two >>> 13), 3266489909);
  two = Math.imul(two ^ (two >>> 16), 2246822507) ^ Math.imul(one ^ (one >>> 13), 3266489909);
  return (4294967296 * (2097151 & two) + (one >>> 0)).toString(36);
};

const FIGURES_OF_A_RUN = ["end_to_end_tok_per_s", "decode_tok_per_s", "ttft_s", "p50", "peak_extra_bytes", "kv_bytes", "new_tokens"];

// What is kept of a run, under 4 kB. Seeds that were drawn belong to the settings: other seeds give other tokens.
const runSummary = (record, words) => {
  const short = (text) => text.slice(0, 120);
  const six = (value) => value === null ? null : Number(value.toPrecision(6));
  const { settings, model, versions, kshipra, machine } = record;
  return {
    when: record.taken_at, model: short(model.spec.name), device: short(model.device), dtype: short(model.spec.dtype),
    threads: model.threads, processor: short(machine.processor),
    versions: short([kshipra, ...Object.entries(versions).flat()].map((part) => part ?? "–").join(" ")),
    settings: short(settingsLine(record, words)), prompts: settings.prompts.length, prompts_hash: shortHash(JSON.stringify(settings.prompts)),
    settings_hash: shortHash(JSON.stringify([
      settings.prompts, settings.chat, settings.params, settings.choice.weights, record.ways[0].result.rows.map(({ seed }) => seed),
      ...(settings.limits?.length ? [settings.limits] : []),
    ])),
    ways: record.ways.slice(0, 10).map(({ key, letter, label, ended, result }) => ({
      key, letter, label: label.slice(0, 40), ended, tokens_hash: shortHash(JSON.stringify(result.rows.map(({ token_ids: ids }) => ids))),
      ...Object.fromEntries(FIGURES_OF_A_RUN.map((name) => [name, six(name === "p50" ? result.step_latency_s.p50 : result[name])])),
    })),
  };
};

const makeRunStore = () => {
  const NAME = "kshipra-runs", MOST = 20, MOST_CHARS = 4000;
  const { is, list, fields, text, number, whole, one, maybe } = Shape;
  const figure = maybe(number(-1e15, 1e24));
  const isRun = fields({
    when: is("date", (value) => typeof value === "string" && Number.isFinite(Date.parse(value))), model: text(120), device: text(120), dtype: text(120),
    threads: whole(1e9), processor: text(120), versions: text(120), settings: text(120), prompts: whole(64), prompts_hash: text(20),
    settings_hash: text(20),
    ways: list(fields({
      key: text(60), letter: is("letter", (value) => /^[A-Z]$/.test(value)), label: text(40), ended: one("done", "stopped", "failed"),
      tokens_hash: text(20), ...Object.fromEntries(FIGURES_OF_A_RUN.map((name) => [name, figure])),
    }), 1, 10),
  });
  let unkept = null; // the runs of a browser that keeps nothing: gone with this page
  const all = () => {
    if (unkept) return unkept;
    try {
      const found = JSON.parse(localStorage.getItem(NAME) ?? "[]");
      return Array.isArray(found) ? found.filter((run) => isRun(run) === null).slice(0, MOST) : [];
    } catch {
      return [];
    }
  };
  const write = (runs) => {
    try {
      localStorage.setItem(NAME, JSON.stringify(runs));
      unkept = null;
    } catch {
      unkept = runs;
    }
  };
  const isSame = (one) => (other) => JSON.stringify(one) === JSON.stringify(other);
  return {
    MOST, all, isSame,
    isKept: () => unkept === null,
    add(run) {
      const others = all();
      if (JSON.stringify(run).length < MOST_CHARS && !others.some(isSame(run))) write([run, ...others].slice(0, MOST));
    },
    remove: (run) => write(all().filter((each) => !isSame(run)(each))),
    clear: () => write([]),
  };
};
