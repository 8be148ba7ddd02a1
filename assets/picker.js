// A place to choose one file or to drop it on; `take(file)` gets it.
const filePicker = ({ accept, choose, orDrop, hint, take }) => {
  const input = make("input", {
    type: "file", accept,
    on: {
      change: () => {
        take(input.files[0]);
        input.value = ""; // the same file may be chosen again
      },
    },
  });
  const over = (yes) => (event) => {
    event.preventDefault();
    drop.classList.toggle("k-over", yes);
  };
  const drop = make("label", {
    class: "k-drop",
    on: {
      dragover: over(true), dragleave: over(false),
      drop: (event) => {
        over(false)(event);
        take(event.dataTransfer.files[0]);
      },
    },
  }, input, make("b", { text: choose }), make("span", { text: orDrop }), make("small", { text: hint }));
  return drop;
};
