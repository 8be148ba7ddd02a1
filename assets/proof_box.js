// One floating box: a token's probability and the likeliest ones. Follows its token when something scrolls.
const makeTokenBox = ({ words, texts }) => {
  const node = make("div", { class: "k-token-box", id: "token-box", role: "tooltip", hidden: "" });
  let owner = null;
  const percent = (logProbability) => {
    if (logProbability === null || logProbability === undefined) return "–";
    const value = Math.exp(logProbability) * 100;
    return value > 0 && value < 0.001 ? "< 0.001 %" : `${digits(value)} %`;
  };
  const shown = (id) => {
    const text = texts()[id];
    return text === undefined ? "–" : JSON.stringify(text);
  };
  const line = ([id, logProbability], chosen) =>
    make("tr", { class: id === chosen ? "k-chosen" : "" },
      make("th", { scope: "row" }, make("span", { text: shown(id) }), ...(id === chosen ? [make("small", { text: `✓ ${words.chosen}` })] : [])),
      make("td", { text: id }),
      make("td", {}, make("i", { class: "k-share", "aria-hidden": "true", style: `width:${(56 * Math.exp(logProbability)).toFixed(1)}px` }),
        make("span", { text: percent(logProbability) })),
      make("td", { text: digits(logProbability) }));
  const table = ({ id, best }) =>
    tableOf([words.text, words.number, words.probability, words.logProbability], best.map((pair) => line(pair, id)),
      { "aria-label": words.alternatives });
  const place = () => {
    if (!owner?.isConnected) return hide();
    const at = owner.getBoundingClientRect();
    const own = node.getBoundingClientRect();
    const below = at.bottom + 6;
    node.style.left = `${Math.max(8, Math.min(at.left, innerWidth - own.width - 8))}px`;
    node.style.top = `${below + own.height > innerHeight && at.top > own.height + 6 ? at.top - own.height - 6 : below}px`;
  };
  const show = (target) => {
    if (!target.facts) return;
    hide();
    owner = target;
    const { way, token, text } = target.facts;
    const best = token.best ?? [];
    node.replaceChildren(
      make("p", {}, mark(way), make("b", { text }), make("span", { text: filled(words.id, { id: token.id }) }),
        make("strong", { text: percent(token.log_probability), title: words.probability })),
      ...(best.length ? [table({ id: token.id, best })] : [make("p", { text: words.noAlternatives })]),
      ...(best.length && !best.some(([id]) => id === token.id) ? [make("p", { text: words.outside })] : []));
    node.hidden = false;
    owner.setAttribute("aria-describedby", node.id);
    place();
    addEventListener("scroll", place, { capture: true, passive: true });
  };
  const hide = () => {
    node.hidden = true;
    owner?.removeAttribute("aria-describedby");
    owner = null;
    removeEventListener("scroll", place, { capture: true });
  };
  return { node, show, hide };
};
