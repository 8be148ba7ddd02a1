// Gradio's loading screen (6.31) goes on asking for sixty frames a second once it has gone, to count seconds that nobody
// sees. Where the browser shares its cores with the engine, that took a sixth of the engine's speed. Its code holds the
// browser's own requestAnimationFrame, but asks for the time right before it asks for the next frame, and requests are
// numbered: so the one that follows is known and can be cancelled. Ends by itself when the page has settled.
const SETTLES_MS = 10_000;

const endLoadingTimer = () => {
  const time = performance.now;
  performance.now = () => {
    const stack = new Error().stack.split("\n");
    const caller = stack[stack[0].startsWith("Error") ? 2 : 1] ?? "";
    if (caller.includes("/statustracker-")) {
      const before = requestAnimationFrame(() => {});
      queueMicrotask(() => [before, before + 1].forEach((id) => cancelAnimationFrame(id)));
    }
    return time.call(performance);
  };
  setTimeout(() => delete performance.now, SETTLES_MS);
};
