// On a narrow page the rail folds behind one button, which says what is inside.

const { words } = props.page;
const button = element.querySelector("button");
button.textContent = words.toggle;
button.addEventListener("click", () => {
  const open = document.getElementById("rail").classList.toggle("open");
  button.setAttribute("aria-expanded", String(open));
  if (open) dispatchEvent(new Event("resize"));
});
