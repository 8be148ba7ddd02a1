// A report's figure as something to play with: Plotly in the page's colours, log axes, the study's points, the numbers.

const makePlot = (() => {
  const HEIGHT = 440, LEAST_HEIGHT = 240, MOST_HEIGHT = 1200, NARROW = 560, MOST_ROWS = 1000, WIDE_SPAN = 4;
  const LIGHTER = 0.3; // of white goes into a report's colours on the dark page
  const BUTTONS = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];
  const copy = (value) => JSON.parse(JSON.stringify(value));
  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const isAxis = (name) => /^[xy]axis\d*$/.test(name);
  const isDark = () => document.body.classList.contains("dark");

  const lit = (hex) => {
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `#${parts.map((part) => Math.round(part + (255 - part) * LIGHTER).toString(16).padStart(2, "0")).join("")}`;
  };
  // Every colour of a report is a hex text under one of Plotly's names that end so.
  const relit = (value, name = "") => {
    if (typeof value === "string") return /color$/i.test(name) && /^#[0-9a-f]{6}$/i.test(value) ? lit(value) : value;
    if (Array.isArray(value)) return value.map((item) => relit(item, name));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, relit(item, key)]));
  };

  // The report's layout in the page's look. Its own axis titles, ranges, shapes and notes stay.
  const themed = (layout, width, height) => {
    const axis = (own) => ({
      gridcolor: colour("--k-grid"), zerolinecolor: colour("--k-grid"), linecolor: colour("--k-line"), automargin: true, ...own,
      title: { ...own.title, font: { size: 13 } }, tickfont: { size: 12 }, ...(own.type === "log" ? { dtick: own.dtick ?? "D2" } : {}),
    });
    const axes = Object.fromEntries(Object.keys({ xaxis: 0, yaxis: 0, ...layout }).filter(isAxis).map((name) => [name, axis(layout[name] ?? {})]));
    const narrow = width < NARROW;
    return {
      ...layout, ...axes, height, width: undefined, autosize: true, uirevision: "kept", separators: ".,",
      paper_bgcolor: colour("--k-card"), plot_bgcolor: colour("--k-card"),
      font: { family: getComputedStyle(document.body).fontFamily, color: colour("--k-soft"), size: 12 },
      margin: { l: 60, r: 16, ...layout.margin, ...(narrow ? { l: 44, r: 8 } : {}) },
      legend: { ...layout.legend, bgcolor: "transparent", font: { size: narrow ? 11 : 12 } },
      hoverlabel: { bgcolor: colour("--k-card"), bordercolor: colour("--k-strong-line"), font: { color: colour("--k-ink") } },
      modebar: { bgcolor: "transparent", color: colour("--k-faint"), activecolor: colour("--k-accent") },
    };
  };

  return ({ title, caption, data, layout: given }, words, plotly) => {
    const layout = copy(given);
    const published = data.flatMap((trace, at) => trace.meta === "published" ? [at] : []);
    const height = Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, Number(given.height) || HEIGHT));
    const plot = make("div", { class: "k-result-plot", role: "img", "aria-label": title });
    plot.style.height = `${height}px`;
    const table = make("div", { class: "k-data k-table", hidden: "", tabindex: "0", role: "region", "aria-label": words.dataLabel });
    table.style.height = plot.style.height;
    const switches = make("div", { class: "k-switches" });
    const node = make("figure", { class: "k-finding" }, make("header", {}, make("h3", { text: title }), switches), plot, table,
      make("figcaption", { text: caption }));
    let Plotly = null;

    const draw = () => {
      const [traces, own] = isDark() ? [relit(data), relit(layout)] : [copy(data), copy(layout)];
      plot.data?.forEach(({ visible }, at) => { if (visible !== undefined) traces[at].visible = visible; }); // by legend or switch
      const image = { format: "png", scale: 2, width: 960, height, filename: title.replace(/[^\w.-]+/g, "-").slice(0, 60) || "figure" };
      return Plotly.react(plot, traces, themed(own, plot.clientWidth, height), { displaylogo: false, responsive: true, modeBarButtons: BUTTONS, toImageButtonOptions: image });
    };

    const addSwitch = (text, means, pressed, press) => {
      const button = make("button", {
        type: "button", class: "k-switch", text, "aria-label": `${text}: ${means}`, "data-tip": means, "aria-pressed": String(pressed),
        on: {
          click: () => {
            const yes = button.getAttribute("aria-pressed") === "false";
            button.setAttribute("aria-pressed", String(yes));
            press(yes);
          },
        },
      });
      switches.append(button);
      return button;
    };

    // A logarithmic axis makes sense for positive numbers that span a range, and not for the length of a bar.
    const numbersOn = (axis) => plot._fullData.filter((trace) => trace[`${axis._id[0]}axis`] === axis._id)
      .flatMap((trace) => [...(trace[axis._id[0]] ?? [])]).filter((value) => value !== null && value !== undefined);
    const canBeLog = (axis) => {
      if (axis.type === "log") return true;
      const numbers = numbersOn(axis);
      const bars = plot._fullData.some((trace) => trace.type !== "scatter" && trace[`${axis._id[0]}axis`] === axis._id);
      return axis.type === "linear" && !bars && numbers.length > 1 && numbers.every((value) => value > 0)
        && numbers.reduce((one, other) => Math.max(one, other)) >= WIDE_SPAN * numbers.reduce((one, other) => Math.min(one, other));
    };
    const addLogSwitch = (letter, text) => {
      const names = Object.keys(plot._fullLayout).filter((name) => isAxis(name) && name[0] === letter && canBeLog(plot._fullLayout[name]));
      if (!names.length) return;
      const was = names.map((name) => plot._fullLayout[name].type);
      addSwitch(text, words.logMeans, was[0] === "log", (yes) => {
        names.forEach((name, at) => {
          const own = given[name] ?? {};
          const type = yes ? "log" : "linear";
          const free = { ...own, type, uirevision: type, rangemode: yes ? "normal" : "tozero" }; // a zoom is of the other scale
          if (type !== was[at]) delete free.range;
          layout[name] = free;
        });
        draw();
      });
    };
    const showPublished = (yes) => Plotly.restyle(plot, { visible: yes ? true : "legendonly" }, published);

    // The numbers behind the figure, of whatever has an x and a y.
    const rows = () => {
      const cell = (value) => make("td", { text: typeof value === "number" ? digits(value) : String(value ?? "–") });
      const all = plot._fullData.flatMap(({ name, x, y, error_y: error }) => [...(x ?? [])].map((at, place) => {
        const [above, below] = [error?.array?.[place], error?.arrayminus?.[place]];
        const spread = [below, above].map((length, end) => length === undefined ? null : y[place] + (end ? length : -length));
        return make("tr", {}, make("td", { text: literalOf(name) }), cell(at), cell(y?.[place]), ...spread.map(cell));
      }));
      return all;
    };
    const axisTitle = (name) => literalOf(given[name]?.title?.text ?? name[0]);
    const fillTable = () => {
      const all = rows();
      const cut = all.length > MOST_ROWS ? [make("p", { class: "k-cut", text: filled(words.cut, { most: MOST_ROWS }) })] : [];
      table.replaceChildren(...cut,
        tableOf([words.series, axisTitle("xaxis"), axisTitle("yaxis"), words.least, words.most], all.slice(0, MOST_ROWS)));
    };

    const addSwitches = () => {
      addLogSwitch("x", words.logX);
      addLogSwitch("y", words.logY);
      if (published.length) {
        const button = addSwitch(words.published, words.publishedMeans, true, showPublished);
        plot.on("plotly_restyle", () => // by the legend
          button.setAttribute("aria-pressed", String(published.some((at) => plot._fullData[at]?.visible === true))));
      }
      if (plot._fullData.some(({ x, y }) => x && y)) {
        addSwitch(words.data, words.dataLabel, false, (yes) => {
          [plot.hidden, table.hidden] = [yes, !yes];
          if (yes) fillTable();
          else Plotly.Plots.resize(plot);
        });
      }
    };

    const sight = new IntersectionObserver(async ([{ isIntersecting }]) => {
      if (!isIntersecting || Plotly) return;
      sight.disconnect();
      try {
        Plotly = await loadPlotly(plotly);
        await draw();
        addSwitches();
      } catch {
        plot.replaceChildren(make("p", { class: "k-empty", text: words.noPlotly }));
      }
    }, { rootMargin: "300px" });
    sight.observe(plot);
    return { node, redraw: () => Plotly && draw(), purge: () => { sight.disconnect(); Plotly?.purge(plot); } };
  };
})();

// What Plotly would write for a text of its own kind: tags gone, entities back.
const literalOf = (text) => String(text).replace(/<br\s*\/?>/g, " ").replace(/<\/?\w+[^>]*>/g, "")
  .replaceAll("&#123;", "{").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
