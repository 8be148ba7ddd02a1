const makeProof = ({ words, open }) => {
  const node = make("div", { class: "k-view k-proof" });
  return { node, show(record) {} };
};
