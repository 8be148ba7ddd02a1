// Is this JSON a run's document that every view can show? Pure: a document goes in, null or one sentence comes out.
// A file may come from anywhere, so each part that a view reads is checked for kind, size and range, and what
// belongs together for agreement: after this no view can throw, loop for ever or point outside a list.

// A shape is a function: value -> null | { where, what }, `where` being the path inside the value.
const Shape = (() => {
  const is = (what, test) => (value) => test(value) ? null : { where: "", what };
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const inside = (name, wrong) => wrong && { ...wrong, where: name + wrong.where };
  const list = (item, least, most) => (value) => {
    if (!Array.isArray(value) || value.length < least || value.length > most) return { where: "", what: "list" };
    for (let at = 0; at < value.length; at++) {
      const wrong = item(value[at]);
      if (wrong) return inside(`[${at}]`, wrong);
    }
    return null;
  };
  const fields = (shapes) => (value) => {
    if (!isObject(value)) return { where: "", what: "parts" };
    for (const name in shapes) {
      const wrong = shapes[name](value[name]);
      if (wrong) return inside(`.${name}`, wrong);
    }
    return null;
  };
  const table = (item) => (value) => isObject(value) ? fields(Object.fromEntries(Object.keys(value).map((key) => [key, item])))(value)
    : { where: "", what: "parts" };
  const row = (...shapes) => (value) => {
    if (!Array.isArray(value) || value.length !== shapes.length) return { where: "", what: "list" };
    const at = shapes.findIndex((shape, place) => shape(value[place]));
    return at < 0 ? null : inside(`[${at}]`, shapes[at](value[at]));
  };
  return {
    is, list, fields, table, row,
    text: (most) => is("text", (value) => typeof value === "string" && value.length <= most),
    number: (low, high) => is("number", (value) => Number.isFinite(value) && value >= low && value <= high),
    whole: (high) => is("whole", (value) => Number.isInteger(value) && value >= 0 && value <= high),
    flag: is("flag", (value) => value === true || value === false),
    one: (...words) => is("word", (value) => words.includes(value)),
    maybe: (shape) => (value) => value === null ? null : shape(value),
  };
})();

const checkRecord = (() => {
  const FORMAT = "kshipra-run", NEWEST = 1, DEEPEST = 16;
  const { is, list, fields, table, row, text, number, whole, flag, one, maybe } = Shape;

  const name = text(400), long = text(1e5), count = whole(1e9), id = whole(1e9), bytes = whole(1e15);
  const time = number(0, 1e7), amount = number(0, 1e24), share = number(0, 1e12), any = number(-1e15, 1e15);
  const seed = maybe(whole(Number.MAX_SAFE_INTEGER)), reason = one("stop", "length", "context", "cancelled");
  const date = is("date", (value) => typeof value === "string" && value.length < 40 && Number.isFinite(Date.parse(value)));
  const letter = is("letter", (value) => typeof value === "string" && /^[A-Z]$/.test(value));
  // "constructor" would be found in every object that is looked into by key
  const key = is("key", (value) => typeof value === "string" && /^[a-z0-9_-]{1,60}$/.test(value) && !(value in {}));
  const later = (shape) => (value) => value === undefined ? null : shape(value); // not in older documents

  const token = fields({
    row: count, id: maybe(id), text: long, finish_reason: maybe(reason), log_probability: maybe(any), best: list(row(id, maybe(any)), 0, 100),
    guessed: later(flag), count: later(maybe(count)),
  });
  const step = fields({
    index: count, phase: one("prefill", "decode"), rows: list(count, 1, 64), new_tokens: list(token, 0, 1e4),
    processed_tokens: maybe(count), pad_tokens: maybe(count), elapsed_s: time, at_s: time, kv_bytes: maybe(bytes),
    kv_held_bytes: maybe(bytes), resident_bytes: maybe(bytes), peak_extra_bytes: maybe(any), memory_method: name, flops: maybe(amount),
    reused_tokens: later(count), drafted_tokens: later(count), row_drafted_tokens: later(list(count, 0, 64)),
    draft_s: later(time),
  });
  const rowResult = fields({
    text: text(1e6), token_ids: list(id, 0, 1e5), prompt_tokens: maybe(count), new_tokens: maybe(count), finish_reason: reason,
    ttft_s: maybe(time), seed, drafted_tokens: later(count), accepted_tokens: later(count),
  });
  const result = fields({
    mode: name, rows: list(rowResult, 1, 16), wall_s: time, ttft_s: maybe(time), prefill_s: maybe(time),
    decode_tok_per_s: maybe(amount), end_to_end_tok_per_s: maybe(amount),
    step_latency_s: fields({ p50: maybe(time), p90: maybe(time), p99: maybe(time) }), forward_passes: maybe(count),
    new_tokens: maybe(count), pad_tokens: maybe(count), kv_bytes: maybe(bytes), kv_held_bytes: maybe(bytes), peak_extra_bytes: maybe(any), memory_method: name,
    steps: list(step, 0, 1e5), largest_gap_s: later(maybe(time)), reused_tokens: later(count), drafted_tokens: later(count),
    accepted_tokens: later(count), draft_s: later(time),
  });
  const roofline = fields({ device: name, dtype: name, threads: count, bytes_per_s: amount, flops_per_s: amount, taken_at: date });
  const prediction = fields({
    roofline, step_bytes: maybe(amount), step_kv_bytes: maybe(amount), step_flops: maybe(amount), predicted_step_s: maybe(time),
    measured_step_s: maybe(time), bandwidth_share: maybe(share), arithmetic_share: maybe(share),
    bound: maybe(one("weights", "arithmetic", "overhead")), kv_formula_bytes: maybe(bytes), kv_real_bytes: bytes, sentence: long,
  });
  const spec = fields({
    name, family: name, layers: count, heads: count, kv_heads: count, head_size: count, width: count, vocabulary: count,
    context: maybe(count), parameters: bytes, block_parameters: bytes, dtype: name, dtype_bytes: count,
    weights: later(name), stored_bytes: later(bytes), pass_weight_bytes: later(bytes),
  });
  const way = fields({
    execution: later(name), spec: later(maybe(spec)), server_model: later(maybe(text(600))), key, letter, label: name, sentence: long, ended: one("done", "stopped", "failed"),
    prompt_ids: list(list(id, 0, 1e6), 1, 16), result, prediction: maybe(prediction),
  });
  const comparison = fields({
    first: key, second: key, verdict: one("identical", "near-tie", "fault", "ended"), row: maybe(count), position: maybe(count),
    first_id: maybe(id), second_id: maybe(id), margin: maybe(any), largest_difference: maybe(any), sentence: long,
    other_weights: later(flag),
  });
  const check = fields({ name, label: long, passed: flag, largest_difference: maybe(any), tolerance: any });
  const wholeDocument = fields({
    kshipra: name, taken_at: date,
    machine: fields({
      processor: name, system: name, memory_bytes: maybe(bytes), threads: later(count), quota_cores: later(maybe(count)),
      caches: later(table(name)),
    }),
    versions: table(maybe(name)),
    model: fields({
      spec, device: name, threads: count, weight_bytes: bytes, kv_bytes_per_token: bytes,
    }),
    settings: fields({
      choice: fields({ model: name, device: name, dtype: name, weights: name, execution: name, implementation: name,
        draft: later(maybe(name)) }),
      prompts: list(long, 1, 16), recipes: list(key, 1, 64), chat: flag,
      limits: later(list(maybe(count), 0, 16)), rows: later(maybe(count)), reuse: later(flag), server: later(fields({ model: text(600) })),
      params: fields({
        max_new_tokens: count, temperature: any, top_k: whole(Number.MAX_SAFE_INTEGER), top_p: any, repetition_penalty: any, seed, stop: list(name, 0, 64),
        ignore_eos: flag,
      }),
    }),
    ways: list(way, 1, 16), comparisons: list(comparison, 0, 256), checks: table(list(check, 0, 64)),
    bug: maybe(fields({ key, label: name, sentence: long, why: long })), texts: table(name),
    summary: fields({ same: maybe(flag), headline: long, verdict: list(long, 0, 64), rows: list(row(key, name, list(name, 0, 64)), 0, 16) }),
  });

  // What belongs together: rows of the run's prompts, times that go forward, tokens that the rows really got.
  const wrongWay = ({ prompt_ids, result: { rows, steps, wall_s } }, prompts) => {
    if (prompt_ids.length !== prompts) return { where: ".prompt_ids", what: "prompts" };
    if (rows.length !== prompts) return { where: ".result.rows", what: "prompts" };
    const got = rows.map(() => []);
    for (const [at, one] of steps.entries()) {
      const where = `.result.steps[${at}]`;
      if (one.index !== at) return { where: `${where}.index`, what: "order" };
      if (at && one.at_s < steps[at - 1].at_s) return { where: `${where}.at_s`, what: "order" };
      if (one.rows.some((each) => each >= prompts)) return { where: `${where}.rows`, what: "prompts" };
      if (one.new_tokens.some((each) => !one.rows.includes(each.row))) return { where: `${where}.new_tokens`, what: "prompts" };
      for (const each of one.new_tokens) if (each.id !== null) got[each.row].push(each.id);
    }
    if (steps.length && wall_s < steps.at(-1).at_s) return { where: ".result.wall_s", what: "order" };
    const odd = rows.findIndex(({ token_ids }, at) => token_ids.join() !== got[at].join());
    return odd < 0 ? null : { where: `.result.rows[${odd}].token_ids`, what: "tokens" };
  };
  const wrongComparison = ({ first, second, verdict, row: at, position }, ways) => {
    if (!ways.has(first) || !ways.has(second)) return { where: "", what: "ways" };
    if (verdict === "identical") return null;
    const lengths = [first, second].map((each) => ways.get(each).result.rows[at]?.token_ids.length ?? 0);
    return at === null || position === null || position >= Math.max(...lengths) ? { where: ".position", what: "tokens" } : null;
  };
  const wrongTogether = ({ ways, comparisons, summary, settings }) => {
    const byKey = new Map(ways.map((each) => [each.key, each]));
    if (byKey.size < ways.length || new Set(ways.map((each) => each.letter)).size < ways.length) return { where: ".ways", what: "ways" };
    const first = (items, where, wrongOf) => {
      for (const [at, item] of items.entries()) {
        const wrong = wrongOf(item);
        if (wrong) return { ...wrong, where: `${where}[${at}]${wrong.where}` };
      }
      return null;
    };
    if (settings.limits?.length && settings.limits.length !== settings.prompts.length) return { where: ".settings.limits", what: "prompts" };
    return first(ways, ".ways", (each) => wrongWay(each, settings.prompts.length))
      ?? first(comparisons, ".comparisons", (each) => wrongComparison(each, byKey))
      ?? first(summary.rows, ".summary.rows", ([each]) => byKey.has(each) ? null : { where: "", what: "ways" });
  };

  // Writing a document back is recursive: one that is far deeper than ours would break that.
  const isTooDeep = (document) => {
    let level = [document];
    for (let depth = 0; depth < DEEPEST && level.length; depth++)
      level = level.flatMap((value) => (typeof value === "object" && value !== null ? Object.values(value) : []));
    return level.length > 0;
  };

  return (document, words) => {
    if (document?.format !== FORMAT) return words.notARun;
    if (Number.isInteger(document.version) && document.version > NEWEST) return filled(words.newer, { version: document.version, newest: NEWEST });
    const wrong = document.version !== NEWEST ? { where: ".version", what: "number" }
      : isTooDeep(document) ? { where: "", what: "flat" }
        : wholeDocument(document) ?? wrongTogether(document);
    return wrong && filled(words.wrong, { where: wrong.where.slice(1) || words.root, what: words.kinds[wrong.what] });
  };
})();
