"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const read = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };
  const lazily = (id) => { let value; return () => (value === undefined ? (value = read(id)) : value); };
  const specs = lazily("chart-specs"), config = lazily("chart-config");

  // ---- charts: drawn when they become visible, never before ----
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  const shown = (value) => typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
  function tooltip(_handler, event, _item, value) {
    if (value === null || value === undefined || value === "") { tip.hidden = true; return; }
    const lines = typeof value === "object"
      ? Object.entries(value).filter(([, text]) => text !== "" && text !== null && text !== "null" && text !== "undefined").map(([name, text]) => `${name}: ${shown(text)}`)
      : [String(value)];
    tip.replaceChildren(...lines.map((line) => { const node = document.createElement("div"); node.textContent = line; return node; }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4))}px`;
  }
  // the libraries run at the first chart: a page opens without waiting for them
  function loadLibraries() {
    if (globalThis.vegaInterpreter) return;
    all("script.library").forEach((library) => {
      const script = document.createElement("script");
      script.textContent = library.textContent;
      document.head.append(script);
    });
  }
  function draw(figure, name, datasets, change) {
    loadLibraries();
    const plot = $(".plot", figure);
    const spec = structuredClone(specs()[name]);
    spec.datasets = datasets;
    spec.width = Math.max(160, Math.floor(plot.clientWidth));
    spec.autosize = { type: "fit-x", contains: "padding" };
    if (change) change(spec);
    const compiled = vegaLite.compile(spec, { config: config(), logger: vega.logger(vega.Error) }).spec;
    if (figure.view) figure.view.finalize();
    const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
      expr: vegaInterpreter.expressionInterpreter, renderer: "svg", hover: true, logLevel: vega.Error,
      loader: { load: () => Promise.reject(new Error("no requests")), sanitize: () => Promise.reject(new Error("no links")) },
    });
    view.tooltip(tooltip);
    figure.view = view;
    figure.drawnWidth = spec.width;
    return view.initialize(plot).runAsync().then(() => {
      // Vega names every group of marks and none of them usefully: the picture has one label
      all("[role],[aria-roledescription]", plot).forEach((node) => { node.removeAttribute("role"); node.removeAttribute("aria-roledescription"); });
      all("svg", plot).forEach((node) => node.setAttribute("aria-hidden", "true"));
      figure.dataset.drawn = "yes";
    });
  }
  const rows = {
    intervals: (data) => data.intervals.length && { intervals: data.intervals },
    memory: (data, figure) => data.memory.length && { memory: data.memory.map((row) => ({ ...row, place: ["weights", "KV cache", "peak activations", "graph pool", "outside the allocator"].indexOf(row.part) })) },
    ecdf: (data, figure) => {
      const curves = data.ecdf.filter((curve) => curve.kind === figure.dataset.key);
      return curves.length && {
        curve: curves.flatMap((curve) => curve.points.filter(([ms]) => ms > 0).map(([ms, share]) => ({ arm: curve.arm, ms, share }))),
        quantiles: curves.flatMap((curve, place) => [["p50", curve.p50], ["p99", curve.p99]].map(([name, ms]) => ({ arm: curve.arm, name: `${name} ${shown(Number(ms.toPrecision(4)))}`, ms, at: (name === "p50" ? 0.03 : 0.14) + 0.22 * place }))),
      };
    },
    rounds: (data, figure) => {
      if (!data.series.length) return 0;
      const chosen = data.series[Number(figure.dataset.chosen || 0)];
      const points = chosen.points.map(([place, round, value, reason]) => {
        const { number, id, arm } = chosen.sessions[place];
        return { session: number, id, round, value, arm: reason < 0 ? arm : "excluded", of: arm, reason: reason < 0 ? "" : chosen.reasons[reason] };
      });
      return { points, band: chosen.band };
    },
    spans: (data) => data.spans.length && { spans: data.spans },
    readings: (data, figure) => { const found = data.readings.filter((row) => row.name === figure.dataset.key); return found.length && { readings: found }; },
    history: (data) => data.nights.length && { nights: data.nights, band: data.band, changes: data.changes },
  };
  function chooser(figure, data) {
    if (figure.dataset.chart !== "rounds" || data.series.length < 2 || $("select", figure)) return;
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Metric");
    data.series.forEach((series, place) => select.add(new Option(`${series.label} (${series.unit})`, place)));
    select.addEventListener("change", () => { figure.dataset.chosen = select.value; render(figure); });
    $("figcaption", figure).append(document.createElement("br"), select);
  }
  const holders = new Map();
  function dataOf(figure) {
    const holder = figure.closest("[data-block]") || figure.closest("[data-cell],[data-run]");
    const id = holder.dataset.block || (holder.dataset.cell ? `cell-data-${holder.dataset.cell}` : `run-data-${holder.dataset.run}`);
    if (!holders.has(id)) holders.set(id, read(id));
    return holders.get(id);
  }
  function render(figure) {
    const data = dataOf(figure), name = figure.dataset.chart;
    const found = data && rows[name](data, figure);
    if (!found) { figure.hidden = true; return Promise.resolve(); }
    chooser(figure, data);
    const title = name === "rounds" ? data.series[Number(figure.dataset.chosen || 0)].unit : name === "history" ? data.unit : null;
    return draw(figure, name, found, (spec) => {
      if (title) spec.title = { text: title, fontSize: 11, fontWeight: 400 };
      legends(spec, found);
      const rows = found.nights || found.points || [];
      if (rows.length && Math.max(...rows.map((row) => Math.abs(row.value))) >= 1e5) {
        for (const layer of spec.layer) if (layer.encoding && layer.encoding.y) layer.encoding.y.axis = { format: ".4~s", tickCount: 5 };
      }
      if (name === "readings") spec.encoding.x.scale = { domain: [0, Math.max(...data.spans.map((span) => span.to_s))] };
    });
  }
  const once = (figure) => { if (figure.started || figure.offsetParent === null) return Promise.resolve(); figure.started = true;
    try { return render(figure).catch((error) => failed(figure, error)); } catch (error) { failed(figure, error); return Promise.resolve(); } };
  function legends(node, datasets) {
    // only what is drawn: a legend of absent arms or parts says nothing
    const present = new Set(Object.values(datasets).flat().flatMap((row) => [row.arm, row.part, row.kind]));
    for (const part of [node, ...(node.layer || [])]) for (const channel of ["color", "shape"]) {
      const encoding = part.encoding && part.encoding[channel];
      const domain = encoding && encoding.scale && encoding.scale.domain;
      if (!domain) continue;
      const kept = domain.map((name, place) => [name, encoding.scale.range[place]]).filter(([name]) => present.has(name));
      encoding.scale = { domain: kept.map(([name]) => name), range: kept.map(([, mark]) => mark) };
    }
  }
  function failed(figure, error) { $(".plot", figure).textContent = "This chart could not be drawn. The table has its numbers."; console.error(error); }
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => { if (entry.isIntersecting) once(entry.target); }), { rootMargin: "300px" });
  const figures = all("figure.chart");
  figures.forEach((figure) => seen.observe(figure));
  let resizing;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => figures.forEach((figure) => {
    if (figure.view && figure.offsetParent !== null && Math.abs($(".plot", figure).clientWidth - figure.drawnWidth) > 8) render(figure);
  }), 150); });

  // the largest tables are text until they are opened: 200 cells have 10,000 such numbers
  document.addEventListener("toggle", (event) => {
    const text = event.target.open && event.target.matches("details.later") && $('script[type="text/html"]', event.target);
    if (!text) return;
    const holder = document.createElement("div");
    holder.innerHTML = text.textContent;
    text.replaceWith(holder);
  }, true);

  // ---- opening: links, buttons, print ----
  const cells = all("details.cell");
  function openTarget() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; target.hidden = false; target.scrollIntoView(); $("summary", target).focus({ preventScroll: true }); }
  }
  addEventListener("hashchange", openTarget);
  document.addEventListener("click", (event) => { const link = event.target.closest('a[href^="#cell-"]'); if (link && link.hash === location.hash) openTarget(); });
  openTarget();
  const lost = (cell) => Number(cell.dataset.severity) > 1;
  all("[data-open]").forEach((button) => button.addEventListener("click", () => cells.forEach((cell) => {
    if (!cell.hidden) cell.open = button.dataset.open === "all" || (button.dataset.open === "lost" && lost(cell));
  })));
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = cells.filter((cell) => !cell.open && lost(cell)).slice(0, 20);
    opened.forEach((cell) => { cell.open = true; });
    figures.forEach(once);
  });
  addEventListener("afterprint", () => opened.forEach((cell) => { cell.open = false; }));

  // ---- filter and sort ----
  const filter = $("#filter"), outcome = $("#outcome"), status = $("#shown");
  const lines = all("[data-text],#cells tbody tr");
  const texts = new Map();
  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const line of lines) {
      if (!texts.has(line)) texts.set(line, (line.dataset.text || line.textContent).toLowerCase());
      const keep = words.every((word) => texts.get(line).includes(word)) && (!outcome || !outcome.value || line.dataset.outcome === outcome.value);
      line.hidden = !keep; count += keep;
      const cell = line.dataset.cell && document.getElementById(`cell-${line.dataset.cell}`);
      if (cell) cell.hidden = !keep;
    }
    all("[data-group]").forEach((group) => { group.hidden = !$("[data-text]:not([hidden])", group); });
    status.textContent = count === lines.length ? "" : `${count} of ${lines.length} shown`;
  }
  if (filter) {
    filter.addEventListener("input", apply);
    if (outcome) outcome.addEventListener("change", apply);
    filter.form.addEventListener("submit", (event) => event.preventDefault());
    if (filter.value || (outcome && outcome.value)) apply();
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); filter.focus(); }
      if (event.key === "Escape" && document.activeElement === filter) { filter.value = ""; apply(); }
    });
  }
  const keyOf = (cell) => {
    const own = cell.dataset.sort !== undefined ? cell.dataset.sort : ($("data", cell) ? $("data", cell).value : cell.textContent.trim());
    const number = own === "" || own === "-" ? NaN : Number(own);
    return { number, text: own };
  };
  all("table.sortable").forEach((table) => {
    const heads = all("thead th", table), body = $("tbody", table);
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button"; button.textContent = head.textContent; head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[place]) }));
        keyed.sort((one, two) => {
          const a = one.key, b = two.key;
          if (Number.isNaN(a.number) !== Number.isNaN(b.number)) return Number.isNaN(a.number) ? 1 : -1;
          const order = Number.isNaN(a.number) ? a.text.localeCompare(b.text) : a.number - b.number;
          return down ? -order : order;
        });
        body.append(...keyed.map((entry) => entry.row));
      });
    });
  });
  document.documentElement.dataset.ready = "yes";
})();
