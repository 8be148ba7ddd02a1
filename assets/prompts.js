// The prompt editor: a list of texts that lives in the component's value and goes with Run.

const { words, presets, most } = props.page;
const root = element.querySelector(".k-prompts");
let prompts = [...props.value]; // each a text, or [text, its own limit of new tokens]
const textOf = (prompt) => [prompt].flat()[0];
const limitOf = (prompt) => [prompt].flat()[1] ?? null;
const withLimit = (text, limit) => limit === null ? text : [text, limit];

const create = (tag, attributes = {}, text = "") => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
};

const select = create("select", { "aria-label": words.preset });
const list = create("ol");
const limitsButton = create("button", { type: "button", class: "k-switch", "aria-pressed": "false", title: words.limitsLabel }, words.limits);
const addButton = create("button", { type: "button", class: "k-add" }, words.add);

let pause = 0;
const settled = () => { // a pause in typing
  clearTimeout(pause);
  pause = setTimeout(() => trigger("input"), 500);
};
const announce = () => document.dispatchEvent(new CustomEvent("kshipra:form", { detail: { prompts } }));
const store = () => {
  props.value = [...prompts];
  const same = presets.findIndex((preset) => JSON.stringify(preset.prompts) === JSON.stringify(prompts));
  select.value = String(same);
  addButton.disabled = prompts.length >= most;
  announce();
  settled();
};
const fit = (area) => {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 150)}px`;
};
const item = (prompt, at) => {
  const node = create("li");
  const area = create("textarea", {
    rows: "1", spellcheck: "false", placeholder: words.placeholder, "aria-label": words.label.replace("{n}", at + 1),
  });
  area.value = textOf(prompt);
  area.addEventListener("input", () => { prompts[at] = withLimit(area.value, limitOf(prompts[at])); fit(area); store(); });
  const limit = create("input", {
    type: "number", min: "0", class: "k-limit", placeholder: words.most, "aria-label": words.limit.replace("{n}", at + 1),
  });
  limit.value = limitOf(prompt) ?? "";
  limit.addEventListener("input", () => {
    prompts[at] = withLimit(textOf(prompts[at]), limit.value === "" ? null : Number(limit.value));
    store();
  });
  const remove = create("button", { type: "button", "aria-label": words.remove.replace("{n}", at + 1) }, "×");
  remove.disabled = prompts.length === 1;
  remove.addEventListener("click", () => { prompts.splice(at, 1); show(Math.min(at, prompts.length - 1)); });
  node.append(create("span", { "aria-hidden": "true" }, at + 1), area, limit, remove);
  return node;
};
const showLimits = (yes) => {
  limitsButton.setAttribute("aria-pressed", String(yes));
  root.classList.toggle("k-limited", yes);
  list.querySelectorAll("textarea").forEach(fit);
};
const hasLimits = () => prompts.some((prompt) => limitOf(prompt) !== null);
const show = (focusAt = null) => {
  showLimits(hasLimits() || (focusAt !== null && root.classList.contains("k-limited")));
  list.replaceChildren(...prompts.map(item));
  list.querySelectorAll("textarea").forEach(fit);
  if (focusAt !== null) list.querySelectorAll("textarea")[focusAt].focus();
  store();
};

for (const [at, { name }] of presets.entries()) select.append(create("option", { value: at }, name));
select.append(create("option", { value: -1, disabled: "" }, words.own));
select.addEventListener("change", () => {
  prompts = [...presets[Number(select.value)].prompts];
  show();
  trigger("select"); // ticks the ways that the preset is about
});
limitsButton.addEventListener("click", () => {
  const yes = limitsButton.getAttribute("aria-pressed") === "false";
  if (!yes && hasLimits()) {
    prompts = prompts.map(textOf);
    show();
  }
  showLimits(yes);
});
addButton.addEventListener("click", () => { prompts.push(""); show(prompts.length - 1); });

const head = create("div", { class: "k-prompts-head" });
head.append(create("h2", {}, words.title), limitsButton, select);
root.append(head, list, addButton);
show();
watch("value", () => { // a link was opened
  if (JSON.stringify(props.value) === JSON.stringify(prompts)) return;
  prompts = [...props.value];
  show();
});
document.addEventListener("kshipra:stage", announce);
new ResizeObserver(() => list.querySelectorAll("textarea").forEach(fit)).observe(root);
