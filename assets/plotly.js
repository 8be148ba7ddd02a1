// Plotly comes once, for the stage and the experiments alike: whichever needs it first loads it.

const loadPlotly = (address) => {
  document.kshipraPlotly ??= new Promise((resolve, reject) => {
    const source = new URL(address, document.baseURI).href;
    document.head.append(make("script", { src: source, on: { load: () => resolve(window.Plotly), error: reject } }));
  });
  return document.kshipraPlotly;
};
