// Race: all ways of a run at once, each on its own clock and at its measured speed. Driven by the recorded events alone.

const makeRace = (() => {
  const SPEEDS = [0.5, 1, 2, 4];
  const PAUSE_MS = 66; // fifteen pictures a second: to ask for every frame would keep a core busy for nothing

  // How many of `times`, which ascend, have come by `t`.
  const countBy = (times, t) => {
    let [low, high] = [0, times.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  // A clock of steady width: two decimals, fewer where there would be more than three digits.
  const clock = (t) => `${t.toFixed(t < 9.995 ? 2 : t < 99.95 ? 1 : 0)} s`;

  const grouped = (count) => count.toLocaleString("en-US");

  // When each token of a way, or each piece of a server's text, came; of each row its whole text, and where in it each of its tokens ends.
  const trackOf = (way) => {
    const rows = way.result.rows.map(() => ({ times: [], ends: [], text: "" }));
    const times = [];
    for (const { at_s: at, new_tokens: tokens } of way.result.steps) {
      for (const { row, id, text } of tokens) {
        if (id === null && !text) continue; // only the count of what had come
        times.push(at);
        rows[row].times.push(at);
        rows[row].text += text;
        rows[row].ends.push(rows[row].text.length);
      }
    }
    return { rows, times };
  };

  // Places of the ways that ran to their end; equal times share one. A way without tokens took no part; where a
  // server does not count them, one whose text came did.
  const placesOf = (ways) => {
    const tookPart = ({ new_tokens: count, rows }) => count === null ? rows.some(({ ttft_s: first }) => first !== null) : count > 0;
    const finished = ways.filter(({ ended, result }) => ended === "done" && tookPart(result));
    return new Map(finished.map((way) =>
      [way.key, 1 + finished.filter(({ result }) => result.wall_s < way.result.wall_s).length]));
  };

  const makeRow = (track, number, prompt) => {
    const text = document.createTextNode("");
    const end = make("span", { class: "new" }, text);
    const node = make("article", { class: "k-row", "data-row": number },
      make("span", { class: "k-number", text: number + 1, "aria-hidden": "true" }),
      make("p", {}, make("span", { class: "prompt", text: prompt }), end));
    let shown = 0;
    return {
      node,
      end,
      draw(t) { // true if it changed
        const count = countBy(track.times, t);
        if (count === shown) return false;
        const to = count ? track.ends[count - 1] : 0;
        if (count < shown) text.deleteData(to, text.length - to);
        else text.appendData(track.text.slice(text.length, to)); // cheaper than a whole new text
        shown = count;
        return true;
      },
    };
  };

  // Keeps the text that changed last in sight, unless someone has scrolled elsewhere.
  const makeFollower = (box) => {
    let followedTo = 0;
    return (end) => {
      const atBottom = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
      if (!atBottom && Math.abs(box.scrollTop - followedTo) > 1) return;
      const last = [...end.getClientRects()].at(-1) ?? end.getBoundingClientRect();
      const view = box.getBoundingClientRect();
      if (last.bottom > view.bottom - 8) box.scrollTop += last.bottom - view.bottom + 8;
      else if (last.top < view.top) box.scrollTop -= view.top - last.top + 8;
      followedTo = box.scrollTop;
    };
  };

  const makeBar = (label, most) => {
    const fill = make("i");
    const node = make("div", { class: "k-race-bar", role: "progressbar", "aria-label": label, "aria-valuemin": "0",
      "aria-valuemax": most, "aria-valuenow": "0" }, fill);
    return { node, draw(count) {
      if (node.getAttribute("aria-valuenow") === String(count)) return;
      node.setAttribute("aria-valuenow", count);
      fill.style.transform = `scaleX(${most ? count / most : 0})`;
    } };
  };

  const makeLane = (words, way, prompts, place) => {
    const track = trackOf(way);
    const rows = track.rows.map((row, number) => makeRow(row, number, prompts[number] ?? ""));
    const bar = makeBar(filled(words.progress, { way: way.label }), track.times.length);
    const badge = make("span", { class: "k-badge" });
    const [tokens, rate, finished] = [make("dd"), make("dd"), make("dd")];
    const figure = (label, definition, value) => make("div", { class: "k-figure" }, term(label, definition, "dt"), value);
    const naming = { tabindex: "0", role: "group", "aria-label": filled(words.texts, { way: way.label }) };
    const texts = make("div", { class: "k-texts", ...naming }, ...rows.map((row) => row.node));
    const node = make("section", { class: `k-lane k-hue-${hue(way)}`, "data-way": way.key, "aria-label": way.label },
      make("header", {}, mark(way), make("h3", { text: way.label }), badge),
      bar.node,
      make("dl", { class: "k-race-figures" }, figure(words.tokens, words.tokensMeaning, tokens),
        figure(words.rate, words.rateMeaning, rate), figure(words.finished, words.finishedMeaning, finished)),
      texts);
    const follow = makeFollower(texts);
    let newest = null;
    return {
      node,
      draw(t) {
        const { wall_s: wall } = way.result;
        const [over, count] = [t >= wall, countBy(track.times, t)];
        bar.draw(count);
        // Pieces of a server's text are no tokens: how many those are it says at the end, if at all.
        const all = tellsIds(way) ? track.times.length : way.result.new_tokens;
        const done = tellsIds(way) ? count : over ? all : null;
        setText(tokens, all === null ? "–" : filled(words.of, { done: done === null ? "–" : grouped(done), all: grouped(all) }));
        setText(rate, digits(done && t > 0 ? done / Math.min(t, wall) : null));
        setText(finished, over && way.ended === "done" && wall > 0 ? seconds(wall) : "–");
        node.dataset.state = over ? way.ended : "decoding";
        setText(badge, !over ? "" : way.ended === "done" ? place : words[way.ended]);
        badge.hidden = !badge.textContent;
        newest = rows.filter((row) => row.draw(t)).at(-1)?.end ?? null;
      },
      follow: () => newest && follow(newest),
    };
  };

  const makeControls = (words, { toggle, seek, speed }) => {
    const play = make("button", { type: "button", class: "k-play", on: { click: toggle } });
    const slider = make("input", { type: "range", min: "0", step: "any", "aria-label": words.time,
      on: { input: () => seek(Number(slider.value)) } });
    const now = make("output", { class: "k-race-clock" });
    const speeds = SPEEDS.map((factor) => {
      const input = make("input", { type: "radio", name: "k-race-speed", value: factor, on: { change: () => speed(factor) } });
      input.checked = factor === 1;
      return make("label", {}, input, make("span", { text: filled(words.times, { factor }) }));
    });
    const node = make("div", { class: "k-race-controls" }, play, slider, now,
      make("div", { class: "k-speeds", role: "radiogroup", "aria-label": words.speed }, ...speeds));
    return {
      node, play, draw(t, length, playing) {
        slider.max = length;
        slider.value = t;
        slider.disabled = play.disabled = length <= 0;
        slider.setAttribute("aria-valuetext", clock(t));
        setText(now, filled(words.clock, { now: clock(t), end: clock(length) }));
        setText(play, playing ? words.pause : t > 0 && t >= length ? words.again : words.play);
      },
    };
  };

  // The offer of runs that were recorded elsewhere, for someone who has not run anything yet.
  const makeOffer = (words, recorded, watchIt) => {
    const choice = make("select", { "aria-label": words.recordedLabel },
      ...recorded.map(({ name }, at) => make("option", { value: at, text: name })));
    const problem = make("span", { class: "k-problem", role: "status" });
    const fetchIt = async () => {
      setText(problem, "");
      try {
        const answer = await fetch(new URL(recorded[Number(choice.value)].address, document.baseURI));
        if (!answer.ok) throw new Error(answer.statusText);
        watchIt(await answer.json());
      } catch {
        setText(problem, words.recordedLost);
      }
    };
    const button = make("button", { type: "button", class: "k-watch", text: words.watch, on: { click: fetchIt } });
    const what = recorded.length > 1 ? choice : make("span", { text: recorded[0].name });
    return make("div", { class: "k-recorded" }, button, what, problem);
  };

  return ({ words, open, page }) => {
    let [lanes, ways, places] = [[], [], new Map()];
    let [t, length, speed, playing] = [0, 0, 1, false];
    let [timer, frame, drawnAt] = [null, null, 0];
    let opened = null; // the recorded run on show, if it is one
    const note = make("p", { class: "k-race-note" });
    const order = make("p", { class: "k-race-order", role: "status" });
    const lanesNode = make("div", { class: "k-lanes" });

    const ordinal = (place) => place === undefined ? "" : words.places[place - 1] ?? filled(words.place, { place });
    const orderText = () => {
      const over = ways.filter((way) => places.has(way.key) && t >= way.result.wall_s)
        .sort((one, other) => one.result.wall_s - other.result.wall_s);
      return over.length ? over.map((way) => filled(words.finisher, { place: ordinal(places.get(way.key)),
        letter: way.letter, way: way.label, time: seconds(way.result.wall_s) })).join(" · ") : words.none;
    };
    const draw = () => {
      controls.draw(t, length, playing);
      setText(order, orderText());
      for (const lane of lanes) lane.draw(t);
      for (const lane of lanes) lane.follow(); // reads the layout, so after all that writes
    };

    const pause = () => {
      playing = false;
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
    const next = () => { timer = setTimeout(() => { frame = requestAnimationFrame(tick); }, PAUSE_MS); };
    const tick = () => {
      if (!node.checkVisibility()) return stop(); // another view of the study is open
      const now = performance.now();
      t = Math.min(length, t + ((now - drawnAt) / 1000) * speed);
      drawnAt = now;
      if (t >= length) pause();
      else next();
      draw();
    };
    const start = () => {
      if (t >= length) t = 0;
      [playing, drawnAt] = [true, performance.now()];
      next();
      draw();
    };
    const stop = () => {
      if (!playing) return;
      pause();
      draw();
    };

    const seek = (to) => { [t, drawnAt] = [to, performance.now()]; draw(); };
    const controls = makeControls(words, { toggle: () => playing ? stop() : start(), seek, speed(factor) { speed = factor; } });
    const stage = make("div", { class: "k-race-stage", hidden: "" }, note, controls.node, order, lanesNode);
    const node = make("div", { class: "k-view k-race" }, stage);
    if (page.recorded.length) node.append(makeOffer(words, page.recorded, (record) => {
      opened = record;
      open(record, "race", "recorded");
      controls.play.focus();
      if (length > 0) start();
    }));
    document.addEventListener("visibilitychange", () => document.hidden && stop());
    document.addEventListener("click", ({ target }) => target.closest?.("#run, #plant") && stop(), true); // the engine needs the cores

    return { node, show(record) {
      pause();
      ways = record.ways;
      places = placesOf(ways);
      [t, length] = [0, Math.max(0, ...ways.map(({ result }) => result.wall_s))];
      note.hidden = record !== opened;
      const date = new Date(record.taken_at).toLocaleDateString();
      setText(note, filled(words.recorded, { processor: record.machine.processor, date }));
      lanes = ways.map((way) => makeLane(words, way, record.settings.prompts, ordinal(places.get(way.key))));
      lanesNode.replaceChildren(...lanes.map((lane) => lane.node));
      spread(lanesNode, lanes.length);
      stage.hidden = false;
      draw();
    } };
  };
})();
