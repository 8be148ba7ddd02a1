// Who shared the batch, place by place, over the last seconds: own rows in colour, others grey, and never a word of text.

const makeLiveChart = (words, places, windowS) => {
  const HEIGHT = 32, GAP = 8, LEFT = 20, RIGHT = 6, AXIS = 22, LEAST = 1.5, TICK_S = 10, WIDE = 34;
  const bars = new Map(); // by row: own, place, joined, first, left, in seconds of the server's clock
  const drawing = svg("svg", { class: "k-live-drawing", role: "img" });
  const resting = make("p", { class: "k-empty", text: words.resting });
  const swatch = (kind, text) => make("span", {}, make("i", { class: kind, "aria-hidden": "true" }), text);
  const legend = make("p", { class: "k-live-legend" },
    swatch("own", words.yours), swatch("other", words.others), swatch("reading", words.reading));
  const node = make("figure", { class: "k-live-chart" }, legend,
    make("div", { class: "k-live-picture" }, drawing, resting), make("figcaption", { text: words.caption }));
  const bottom = places * (HEIGHT + GAP);
  let now = 0;

  const text = (x, y, anchor, said, name = "") => {
    const label = svg("text", { x, y, "text-anchor": anchor, class: name });
    label.textContent = said;
    return label;
  };

  // One row's stay: while its prompt is read a hollow bar, then a full one; "you" where there is room.
  const barOf = ([own, place, joined, first, left], at) => {
    const from = now - windowS;
    const [start, end] = [Math.max(joined, from), left ?? now];
    const told = Math.min(Math.max(first ?? end, start), end);
    const y = place * (HEIGHT + GAP);
    const rect = (name, one, other) => svg("rect", {
      class: name, x: at(one), y, height: HEIGHT, width: Math.max(LEAST, at(other) - at(one) - 0.5), rx: 3,
    });
    const parts = [...(told > start ? [rect("reading", start, told)] : []), ...(first !== null ? [rect("told", told, end)] : [])];
    const label = own && at(end) - at(told) > WIDE ? [text(at(end) - 6, y + HEIGHT / 2 + 4, "end", words.you.toLowerCase())] : [];
    return svg("g", { class: own ? "own" : "other" }, ...parts, ...label);
  };

  const draw = () => {
    const width = node.clientWidth;
    if (!width) return; // nobody looks
    const at = (time) => LEFT + (width - LEFT - RIGHT) * (1 - (now - time) / windowS);
    for (const [row, bar] of bars) if (bar[4] !== null && bar[4] < now - windowS) bars.delete(row);
    const lanes = Array.from({ length: places }, (_, place) => svg("g", { class: "lane" },
      svg("rect", { x: LEFT, y: place * (HEIGHT + GAP), width: width - LEFT - RIGHT, height: HEIGHT, rx: 3 }),
      text(LEFT - 8, place * (HEIGHT + GAP) + HEIGHT / 2 + 4, "end", place + 1)));
    const ticks = Array.from({ length: windowS / TICK_S + 1 }, (_, n) => {
      const ago = windowS - n * TICK_S;
      const anchor = n === 0 ? "start" : ago === 0 ? "end" : "middle";
      return text(at(now - ago), bottom + AXIS - 8, anchor, ago ? words.ago.replace("{s}", ago) : words.now, "tick");
    });
    drawing.setAttribute("viewBox", `0 0 ${width} ${bottom + AXIS}`);
    drawing.setAttribute("height", bottom + AXIS);
    drawing.replaceChildren(...lanes, ...[...bars.values()].map((bar) => barOf(bar, at)), ...ticks);
  };
  addEventListener("resize", draw);

  return {
    node,
    bar(row, ...bar) { bars.set(row, bar); },
    show(nowS, running, own) {
      now = nowS;
      resting.hidden = running > 0 || bars.size > 0;
      drawing.setAttribute("aria-label", filled(words.chart, { running: String(running), own: String(own) }));
      draw();
    },
    draw,
  };
};
