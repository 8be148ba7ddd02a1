const makeTimeline = ({ words, open }) => {
  const node = make("div", { class: "k-view k-timeline" });
  return { node, show(record) {} };
};
