const makeRace = ({ words, open }) => {
  const node = make("div", { class: "k-view k-race" });
  return { node, show(record) {} };
};
