const makePrediction = ({ words, open }) => {
  const node = make("div", { class: "k-view k-prediction" });
  return { node, show(record) {} };
};
