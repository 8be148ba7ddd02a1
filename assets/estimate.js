// What the form's plan takes of memory: one line, and whether it fits.

const text = element.querySelector("p");
const read = () => {
  if (!props.value) return;
  const [state, said] = JSON.parse(props.value);
  element.dataset.state = state;
  if (text.textContent !== said) text.textContent = said;
};
watch("value", read);
read();
