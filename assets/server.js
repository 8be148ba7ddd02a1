// A server that goes away tells nobody: who waits for it has to ask. And as soon as one answers in its place, Gradio
// (6.31) loads the page anew, with which all that had come would be gone: it is kept from that, once.

const SILENT_MS = 3_000, PATIENCE_MS = 30_000;

// `waits`: whether the server owes something. `holds`: whether something is shown that a fresh page would not have.
// `lose` is called when the server does not answer. Gives `heard`, to be called whenever something has come.
const watchServer = ({ waits, holds, lose }) => {
  let [heardAt, asking, kept] = [Date.now(), false, false];
  const isThere = () => fetch(new URL("gradio_api/app_id", document.baseURI),
    { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) }).then(({ ok }) => ok, () => false);
  setInterval(async () => {
    if (asking || !waits() || Date.now() - heardAt < SILENT_MS) return;
    asking = true;
    if (!await isThere() && waits()) lose();
    asking = false;
  }, SILENT_MS);
  window.navigation?.addEventListener("navigate", (event) => {
    if (event.navigationType !== "reload" || event.userInitiated || kept || !holds()) return;
    kept = true;
    event.preventDefault();
    lose();
  });
  return { heard: () => { heardAt = Date.now(); } };
};
