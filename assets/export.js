const makeExport = ({ words, open }) => {
  const node = make("div", { class: "k-view k-export" });
  return { node, show(record) {} };
};
