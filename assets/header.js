// The header: which part of the page is shown, which model there is, and the light/dark switch.

const { words } = props.page;
const row = element.querySelector(".k-model");
const label = document.createElement("b");
const text = document.createElement("span");
const theme = document.createElement("button");
label.textContent = words.model;
theme.type = "button";
row.append(label, text, theme);

const setModel = (value) => { if (text.textContent !== value) text.textContent = value; };
const read = () => { if (props.value) setModel(JSON.parse(props.value)[1]); };
read();
watch("value", read);
document.addEventListener("kshipra:model", ({ detail }) => setModel(detail));

const KEY = "kshipra-theme";
const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
const remember = (name) => { try { localStorage.setItem(KEY, name); } catch { /* a private window */ } };
const name = () => {
  const dark = document.body.classList.contains("dark");
  theme.textContent = dark ? words.light : words.dark;
  theme.setAttribute("aria-label", dark ? words.lightLabel : words.darkLabel);
};
const apply = (dark) => { document.body.classList.toggle("dark", dark); name(); };
theme.addEventListener("click", () => {
  const dark = !document.body.classList.contains("dark");
  apply(dark);
  remember(dark ? "dark" : "light");
});
if (remembered() && !new URLSearchParams(location.search).has("__theme")) apply(remembered() === "dark");
name();
new MutationObserver(name).observe(document.body, { attributes: true, attributeFilter: ["class"] });

const mark = () => {
  for (const link of element.querySelectorAll(".k-places a")) {
    if (link.hash === location.hash) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
};
addEventListener("hashchange", mark);
// A place is relative to the page's base, which lacks the query of a link: to go there would load the page anew.
for (const link of element.querySelectorAll(".k-places a")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in another tab
    event.preventDefault();
    location.hash = link.hash;
  });
}
mark();
