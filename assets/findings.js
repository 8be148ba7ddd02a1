// A report on an experiment's results: question, answers, where it was measured, then its figures and tables.

const makeFindings = (words, plotly) => {
  let plots = [];
  const heading = make("h2", { tabindex: "-1" });
  const node = make("article", { class: "k-findings", hidden: "" });

  const facts = (pairs) => make("section", { class: "k-finding-facts" }, make("h3", { text: words.factsHead }),
    make("dl", {}, ...pairs.map(([label, text]) => make("div", {}, make("dt", { text: label }), make("dd", { text })))));
  const answers = (sentences) => make("section", { class: "k-answers" }, make("h3", { text: words.answers }),
    make("ul", {}, ...sentences.map((text) => make("li", { text }))));
  const tableCard = ({ title, caption, columns, rows }) => make("figure", { class: "k-finding" }, make("header", {}, make("h3", { text: title })),
    make("div", { class: "k-table", tabindex: "0", role: "region", "aria-label": title },
      tableOf(columns, rows.map(([first, ...cells]) =>
        make("tr", {}, make("th", { scope: "row", text: first }), ...cells.map((text) => make("td", { text })))))),
    make("figcaption", { text: caption }));

  new MutationObserver(() => plots.forEach(({ redraw }) => redraw())).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  explainOnHover(node);
  const tip = node.lastChild;
  return {
    node,
    show(report) {
      plots.forEach(({ purge }) => purge());
      plots = [];
      setText(heading, report.title);
      const parts = report.parts.map((part) => {
        if (part.columns) return tableCard(part);
        plots.push(makePlot(part, words, plotly));
        return plots.at(-1).node;
      });
      node.replaceChildren(
        make("header", {}, heading, make("p", { class: "k-question", text: report.question }), make("p", { class: "k-race-note", text: report.note })),
        make("div", { class: "k-said-and-where" }, answers(report.answers), facts(report.facts)), ...parts, tip);
      node.hidden = false;
      heading.focus();
      node.scrollIntoView({ block: "start" });
    },
  };
};
