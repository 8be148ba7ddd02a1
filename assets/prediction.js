// Prediction beside measurement: what a decode step should take by the model's shape and this machine's roofline.

const makePrediction = ({ words }) => {
  const node = make("div", { class: "k-view k-prediction" });
  const percent = (share) => share === null ? "–" : `${digits(share * 100)} %`;

  // Measured time as the whole bar, and the part of it that reading and arithmetic explain.
  const bar = ({ predicted_step_s, measured_step_s }, longest) => {
    if (!measured_step_s) return make("span", { text: "–" });
    const whole = make("span", { class: "k-measured" });
    const part = make("span", { class: "k-predicted" });
    whole.style.width = `${(measured_step_s / longest) * 100}%`;
    part.style.width = `${Math.min(1, predicted_step_s / measured_step_s) * 100}%`;
    whole.append(part);
    return make("span", { class: "k-bar", "aria-hidden": "true" }, whole);
  };

  const BOUNDS = { weights: words.weights, arithmetic: words.arithmetic, overhead: words.overhead };
  const cells = (found, longest) => [
    bar(found, longest), seconds(found.predicted_step_s), seconds(found.measured_step_s), percent(found.bandwidth_share),
    percent(found.arithmetic_share), BOUNDS[found.bound] ?? "–", bytes(found.kv_formula_bytes), bytes(found.kv_real_bytes),
  ];
  const table = (ways) => {
    const longest = Math.max(...ways.map(({ prediction }) => prediction.measured_step_s ?? 0));
    const heads = words.heads.map(([label, definition]) => term(label, definition));
    const rows = ways.map((way) => wayRow(way, "", cells(way.prediction, longest)));
    return make("div", { class: "k-table", tabindex: "0", role: "region", "aria-label": words.table }, tableOf(heads, rows));
  };

  return {
    node,
    show(record) {
      const ways = record.ways.filter((way) => way.prediction);
      if (!ways.length) {
        node.replaceChildren(make("p", { class: "k-empty", text: words.none }));
        return;
      }
      const { roofline } = ways[0].prediction;
      const machine = filled(words.roofline, {
        bandwidth: `${bytes(roofline.bytes_per_s)}/s`, arithmetic: `${digits(roofline.flops_per_s / 1e9)} GFLOP/s`,
        device: roofline.device, dtype: roofline.dtype, threads: roofline.threads, when: new Date(roofline.taken_at).toLocaleString(),
      });
      const sentences = ways.map((way) => make("li", { class: `k-hue-${hue(way)}` }, mark(way), make("span", { text: way.prediction.sentence })));
      node.replaceChildren(make("ul", {}, ...sentences), table(ways), make("p", { class: "k-small", text: machine }), make("p", { class: "k-small", text: words.how }));
    },
  };
};
