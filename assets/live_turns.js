// A visitor's conversation: what he said, its answer as it comes, what it cost, and a Stop for each.

const makeTurns = (words, figures, stop) => {
  const UNDER_WAY = ["waiting", "reading", "answering"];
  const turns = new Map(); // by number
  const list = make("ol", { class: "k-turns" });
  const empty = make("p", { class: "k-empty", text: words.empty });
  const node = make("div", { class: "k-talk", tabindex: "0", role: "region", "aria-label": words.talk }, empty, list);

  // Its end stays in view unless somebody reads further up.
  let atEnd = true;
  const showEnd = () => { if (atEnd) node.scrollTop = node.scrollHeight; };
  node.addEventListener("scroll", () => { atEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 40; });
  addEventListener("resize", showEnd);

  const makeTurn = (number, said) => {
    const values = figures.map(() => make("dd", { text: "–" }));
    const badge = make("span", { class: "k-badge", text: words.sending });
    const settled = document.createTextNode("");
    const fresh = make("span", { class: "k-fresh" });
    const note = make("p", { class: "k-turn-note", hidden: "" });
    const button = make("button", {
      type: "button", class: "k-button k-turn-stop", text: words.stop, "aria-label": filled(words.stopLabel, { n: String(number + 1) }),
      on: { click: () => { button.disabled = true; stop(number); } },
    });
    const cells = figures.map(({ label, definition }, at) => make("div", {}, term(label, definition, "dt"), values[at]));
    const own = make("li", { class: "k-turn", "data-number": number, "data-state": "waiting" },
      make("p", { class: "k-turn-said" }, make("b", { text: words.you }), make("span", { text: said })),
      make("p", { class: "k-turn-answer" }, make("b", { text: words.model }), make("span", {}, settled, fresh)),
      note,
      make("footer", {}, badge, make("dl", {}, ...cells), button));
    list.append(own);
    return { own, values, badge, settled, fresh, note, button };
  };

  return {
    node,
    isWaiting: () => [...turns.values()].some(({ own }) => UNDER_WAY.includes(own.dataset.state)),
    isEmpty: () => turns.size === 0,
    breakOff() { // what was answered so far stays
      for (const { own, badge, button } of turns.values()) {
        if (!UNDER_WAY.includes(own.dataset.state)) continue;
        own.dataset.state = "cancelled";
        setText(badge, words.brokenOff);
        button.hidden = true;
      }
    },
    clear() { turns.clear(); list.replaceChildren(); empty.hidden = false; },
    say(number, said) {
      empty.hidden = true;
      turns.set(number, makeTurn(number, said));
      atEnd = true;
      showEnd();
    },
    withdraw(number) {
      turns.get(number)?.own.remove();
      turns.delete(number);
      empty.hidden = turns.size > 0;
    },
    tell(number, text) {
      const turn = turns.get(number);
      if (!turn) return; // of a conversation before
      turn.settled.appendData(turn.fresh.textContent);
      turn.fresh.textContent = text;
      showEnd();
    },
    state(number, state, word, note, strings) {
      const turn = turns.get(number);
      if (!turn) return;
      turn.own.dataset.state = state;
      setText(turn.badge, word);
      setText(turn.note, note);
      turn.note.hidden = !note;
      strings.forEach((text, at) => setText(turn.values[at], text));
      turn.button.hidden = !UNDER_WAY.includes(state);
      if (turn.button.hidden) {
        turn.settled.appendData(turn.fresh.textContent);
        turn.fresh.textContent = "";
      }
      showEnd();
    },
  };
};
