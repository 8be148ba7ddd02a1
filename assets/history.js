const makeHistory = ({ words, open }) => {
  const node = make("div", { class: "k-view k-history" });
  return { node, show(record) {} };
};
