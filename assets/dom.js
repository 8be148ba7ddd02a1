// Small helpers of the stage's and the study's scripts. Text becomes text nodes only: nothing here takes markup.

const make = (tag, options = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

// A label that explains itself on hover, focus and to a screen reader.
const term = (label, definition, tag = "span") =>
  make(tag, { class: "k-term", text: label, tabindex: "0", "aria-label": `${label}: ${definition}`, "data-tip": definition });

// One floating box for all definitions, so that no scrolling parent cuts it off.
const explainOnHover = (root) => {
  const tip = make("div", { class: "k-tip", "aria-hidden": "true" });
  root.append(tip);
  let focused = false;
  const show = (event) => {
    const label = event.target.closest?.("[data-tip]");
    if (!label) return;
    focused = event.type === "focusin";
    tip.textContent = label.dataset.tip;
    tip.classList.add("shown");
    tip.style.left = "0px"; // its width depends on where it stands
    const at = label.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.width - 8))}px`;
    tip.style.top = `${at.top - box.height - 8 > 0 ? at.top - box.height - 8 : at.bottom + 8}px`;
  };
  const hide = () => tip.classList.remove("shown");
  root.addEventListener("mouseover", show);
  root.addEventListener("focusin", show);
  root.addEventListener("mouseout", () => focused || hide()); // the page may scroll away under a resting mouse
  root.addEventListener("focusout", hide);
  root.addEventListener("keydown", (event) => event.key === "Escape" && hide());
};

// A letter's place in the palette: A is 0. The bug lab's two, which run without the others, take the first.
const DASHES = [
  "solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px,1px,2px", "1px,3px", "8px,2px,2px,2px,2px,2px", "3px,3px,1px,3px",
];
const STROKES = ["", "6 4", "2 3", "6 3 2 3", "10 4", "10 3 2 3", "5 2 1 2", "1 3", "8 2 2 2 2 2", "3 3 1 3"];
const hue = ({ key, letter }) => key.endsWith("-broken") ? 0 : key.endsWith("-healthy") ? 1 : (letter.charCodeAt(0) - 65) % DASHES.length;

// Rows of many ways are filled evenly: five are three and two, seven four and three. Three or fewer are one row.
const spread = (node, ways) => {
  node.classList.toggle("k-many", ways > 3);
  node.style.setProperty("--k-across", Math.ceil(ways / Math.ceil(ways / 4)));
};

const svg = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// The way's letter with its colour and dash pattern: the same mark in column heads and table.
const mark = (recipe) => {
  const stroke = svg("line", { x1: 0, x2: 26, y1: 2, y2: 2, "stroke-dasharray": STROKES[hue(recipe)] });
  const drawing = svg("svg", { viewBox: "0 0 26 4", width: 26, height: 4, "aria-hidden": "true" }, stroke);
  return make("span", { class: `k-mark k-hue-${hue(recipe)}` }, make("b", { text: recipe.letter }), drawing);
};

// Heads and rows in `order`, without the columns of nothing but dashes: of what no way has. Older runs have shorter rows.
const inOrder = (heads, rows, order) => {
  const kept = order.filter((at) => rows.some((cells) => (cells[at] ?? "–") !== "–"));
  return [heads, ...rows].map((cells) => kept.map((at) => cells[at] ?? "–"));
};

// A table of ready rows. A head is a text, or a node that explains itself.
const tableOf = (heads, rows, options = {}) => {
  const cells = heads.map((head) => make("th", { scope: "col" }, head));
  return make("table", options, make("thead", {}, make("tr", {}, ...cells)), make("tbody", {}, ...rows));
};

// A way's row: its mark, its name with what may be said of it, then its cells, each a text or a node.
const wayRow = (recipe, note, cells) =>
  make("tr", { class: `k-hue-${hue(recipe)}` },
    make("th", { scope: "row" }, mark(recipe), make("span", { text: recipe.label }), ...(note ? [make("small", { text: note })] : [])),
    ...cells.map((cell) => make("td", {}, cell)));
