"use strict";
/* The controls of a report. Numbers stand in the page already; data/results.js has them again for the pictures. */

const winnow = {
  sections: new Map(),
  waiting: new Map(),
  /* Called by data/results.js. */
  results(data) {
    for (const section of data.sections) winnow.sections.set(String(section.number), section);
  },
  /* Called by data/predictions-*.js. */
  predictions(data) {
    winnow.waiting.get(data.file)?.(data);
  },
};

/* ---- small helpers ---- */

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const chosen = (form) => Object.fromEntries(new FormData(form));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/* Plotly reads tags in its texts. */
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/* ---- light and dark ---- */

const dark = matchMedia("(prefers-color-scheme: dark)");
const memory = {
  get() {
    try { return localStorage.getItem("winnow-theme"); } catch { return null; }
  },
  set(theme) {
    try { localStorage.setItem("winnow-theme", theme); } catch { /* Pages from files may have no memory. */ }
  },
};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button?.setAttribute("aria-pressed", String(theme === "dark"));
  for (const chart of Chart.every) chart.refresh();
}

function startTheme() {
  document.getElementById("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    memory.set(theme);
    setTheme(theme);
  });
  dark.addEventListener("change", () => memory.get() || setTheme(dark.matches ? "dark" : "light"));
  setTheme(document.documentElement.dataset.theme);
}

/* ---- tabs ---- */

function startTabs(tabs) {
  const links = all("a", tabs);
  const panel = (link) => document.getElementById(link.hash.slice(1));
  function show(link) {
    for (const each of links) {
      const current = each === link;
      each.setAttribute("aria-selected", String(current));
      each.tabIndex = current ? 0 : -1;
      panel(each).hidden = !current;
    }
    panel(link).dispatchEvent(new Event("shown"));
  }
  tabs.setAttribute("role", "tablist");
  for (const link of links) {
    link.setAttribute("role", "tab");
    link.setAttribute("aria-controls", panel(link).id);
    link.id = `tab-${panel(link).id}`;
    panel(link).setAttribute("role", "tabpanel");
    panel(link).setAttribute("aria-labelledby", link.id);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      history.replaceState(null, "", link.hash);
      show(link);
    });
  }
  tabs.addEventListener("keydown", (event) => {
    const here = links.indexOf(document.activeElement);
    const last = links.length - 1;
    const next = { ArrowRight: here === last ? 0 : here + 1, ArrowLeft: here ? here - 1 : last, Home: 0, End: last }[event.key];
    if (event.key === " ") document.activeElement.click();
    if (next === undefined && event.key !== " ") return;
    event.preventDefault();
    if (next !== undefined) {
      links[next].focus();
      links[next].click();
    }
  });
  /* A link to a panel, or to something in one, opens it. */
  function follow() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const inside = target && links.find((link) => panel(link).contains(target));
    if (inside) {
      show(inside);
      target.scrollIntoView();
    }
    return inside;
  }
  addEventListener("hashchange", follow);
  follow() || show(links[0]);
}

/* ---- tables: sorting and filters ---- */

function startSorting(table) {
  const headings = all("thead th", table);
  headings.forEach((heading, column) => {
    if (!heading.dataset.sort) return;
    const button = element("button", { type: "button" }, ...heading.childNodes);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") !== (heading.dataset.sort === "text" ? "ascending" : "descending");
      const descending = heading.dataset.sort === "text" ? !down : down;
      for (const each of headings) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortRows(table, column, heading.dataset.sort, descending ? -1 : 1);
    });
  });
}

function sortRows(table, column, kind, sign) {
  const body = table.tBodies[0];
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([one], [other]) => {
    /* What is missing stays last in both directions. */
    if (one === "" || other === "") return (one === "") - (other === "");
    return sign * (kind === "text" ? one.localeCompare(other, "en", { numeric: true }) : one - other);
  });
  body.append(...rows.map(([, row]) => row));
}

function startFilters(form) {
  const target = document.getElementById(form.dataset.filters);
  const rows = all("tbody tr[data-method], [data-row]", target);
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  function apply() {
    const { text = "", ...wanted } = chosen(form);
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const fits = Object.entries(wanted).every(([name, value]) => value === "" || row.dataset[name] === value
        /* Methods without a budget are what others are compared with. */
        || (name === "budget" && row.dataset.budget === ""));
      row.hidden = !(fits && words.every((word) => texts.get(row).includes(word)));
      count += !row.hidden;
    }
    form.querySelector("output").value = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.reset();
  apply();
}

/* ---- pictures ---- */

const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
const SIGNS = ["●", "■", "▲", "◆", "▼", "✚", "✖"];
const NARROW = 600;
const DASHES = ["solid", "dash", "dot"];
const IN_COLOR = 7;
const AXES = {
  held_bytes: { title: "bytes held, mean of a sequence", written: writtenBytes, steps: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], base: 1024 },
  share: { title: "bytes held, of the full cache's", written: (value) => `${+(100 * value).toPrecision(3)}%`, steps: [1, 2, 5], base: 10 },
  slots: { title: "slots per KV head, mean", written: (value) => `${+value.toPrecision(4)}`, steps: [1, 2, 5], base: 10 },
};
const COSTS = {
  token_milliseconds: { title: "ms per decoded token", written: (value) => `${number(value)} ms per decoded token` },
  prefill_seconds: { title: "seconds of prefill", written: (value) => `${number(value)} s of prefill` },
  compress_seconds: { title: "seconds of compression", written: (value) => `${number(value)} s of compression` },
};

function writtenBytes(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1024 || unit === "GiB") return `${+count.toPrecision(3)} ${unit}`;
    count /= 1024;
  }
}

/* Round values between the ends of a logarithmic axis, so few that their texts do not meet. */
function ticks(axis, low, high, most) {
  const between = (steps) => {
    const found = [];
    for (let unit = axis.base ** Math.floor(Math.log(low) / Math.log(axis.base)); unit <= high; unit *= axis.base)
      for (const step of steps) if (unit * step >= low && unit * step <= high) found.push(unit * step);
    return found;
  };
  const coarse = between(axis.steps);
  const found = coarse.length > 2 ? coarse : between(axis.steps.flatMap((step) => [step, 1.5 * step]));
  const every = Math.ceil(found.length / most);
  return found.filter((_, index) => index % every === 0);
}

class Chart {
  static every = [];

  constructor(form) {
    this.form = form;
    this.kind = form.dataset.chart;
    this.section = winnow.sections.get(form.dataset.section);
    this.panel = form.closest(".panel");
    this.box = this.panel.querySelector(".chart");
    this.bases = [...new Set(this.section.methods.map((method) => method.base))];
    this.styled = this.bases.filter((base) => base !== "full");
    this.inColor = new Set(this.styled.slice(0, IN_COLOR));
    form.reset();
    form.addEventListener("input", () => this.draw());
    form.addEventListener("submit", (event) => event.preventDefault());
    this.panel.addEventListener("shown", () => this.draw());
    this.makeLegend();
    Chart.every.push(this);
  }

  refresh() {
    this.makeSwatches();
    this.draw();
  }

  style(base) {
    const index = this.styled.indexOf(base);
    return {
      color: color(`line-${index % SYMBOLS.length}`),
      symbol: SYMBOLS[index % SYMBOLS.length],
      sign: SIGNS[index % SIGNS.length],
      dash: DASHES[Math.floor(index / SYMBOLS.length) % DASHES.length],
    };
  }

  makeLegend() {
    const legend = this.panel.querySelector(".legend");
    const setAll = (checked) => {
      this.inColor = new Set(checked ? this.styled : []);
      for (const { box } of this.boxes) box.checked = checked;
      this.draw();
    };
    for (const [text, checked] of [["All", true], ["None", false]]) {
      const button = element("button", { type: "button" }, text);
      button.addEventListener("click", () => setAll(checked));
      legend.append(button);
    }
    this.boxes = this.styled.map((base) => {
      const box = element("input", { type: "checkbox", checked: this.inColor.has(base), value: base });
      box.addEventListener("change", () => {
        this.inColor[box.checked ? "add" : "delete"](base);
        this.draw();
      });
      const swatch = element("span");
      legend.append(element("label", {}, box, swatch, base));
      return { base, box, swatch };
    });
    this.makeSwatches();
  }

  makeSwatches() {
    for (const { base, swatch } of this.boxes) {
      const { color: stroke, dash, sign } = this.style(base);
      const space = { solid: "", dash: "5 2", dot: "2 2" }[dash];
      swatch.innerHTML = `<svg width="30" height="12" aria-hidden="true"><line x1="0" x2="30" y1="6" y2="6" stroke-width="3" stroke="${stroke}" stroke-dasharray="${space}"/><text x="15" y="10" text-anchor="middle" font-size="12" fill="${stroke}">${sign}</text></svg>`;
    }
  }

  /* Points of the chosen slice: {method, x, y, low, high, whole, ...}. */
  points() {
    const { section } = this;
    const wanted = { task: section.slices[0].name, length: "", x: "held_bytes", ...chosen(this.form) };
    const slice = section.slices.findIndex((each) => each.name === wanted.task && String(each.length ?? "") === wanted.length);
    const quantity = wanted.quantity ?? section.quantities[0].name;
    const rows = this.kind === "scores"
      ? section.results.filter((row) => row.slice === slice && row.quantity === quantity)
      : section.costs.filter((row) => row.slice === slice && row.machine === Number(wanted.machine ?? 1) && row[quantity] !== null);
    const points = rows.map((row) => ({
      ...row,
      method: section.methods[row.method],
      y: this.kind === "scores" ? row.mean : row[quantity],
      whole: row.examples === row.most,
    }));
    return { wanted, quantity, points: points.filter((point) => point[wanted.x] > 0) };
  }

  draw() {
    /* What is hidden has no size; it is drawn when it is shown. */
    if (this.panel.hidden) return;
    if (!window.Plotly) {
      this.box.textContent = "plotly.min.js, which draws the picture, is missing; the table has all numbers.";
      this.box.style.height = "auto";
      return;
    }
    const { wanted, quantity, points } = this.points();
    const measure = this.kind === "scores" ? this.section.quantities.find((each) => each.name === quantity) : null;
    const factor = measure?.percent ? 100 : 1;
    const written = measure ? (value) => writtenMean(value, measure) : COSTS[quantity].written;
    const traces = [...this.lines(points, wanted, factor, written), ...this.fullLine(points, wanted, factor, written)];
    Plotly.react(this.box, traces, this.layout(points, wanted, measure, quantity), {
      responsive: true, displaylogo: false, displayModeBar: this.box.clientWidth < NARROW ? false : "hover",
      /* All others, among them one that would send the data to a server, are left out. */
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    });
  }

  lines(points, wanted, factor, written) {
    const quiet = [], bands = [], loud = [];
    /* Many bands over each other would hide the lines. */
    const opacity = Math.max(0.04, 0.4 / (3 + this.inColor.size));
    for (const base of this.styled) {
      const here = points.filter((point) => point.method.base === base).sort((one, other) => one[wanted.x] - other[wanted.x]);
      if (!here.length) continue;
      const inColor = this.inColor.has(base);
      const { color: stroke, symbol, dash } = inColor ? this.style(base) : { color: color("quiet"), symbol: "circle", dash: "solid" };
      const x = here.map((point) => point[wanted.x]);
      (inColor ? loud : quiet).push({
        x, y: here.map((point) => factor * point.y), name: plain(base), mode: inColor || here.length === 1 ? "lines+markers" : "lines",
        line: { color: stroke, dash, width: inColor ? 2.2 : 1.2 },
        marker: { color: stroke, size: inColor ? 9 : 5, symbol: here.map((point) => (point.whole ? symbol : `${symbol}-open`)) },
        text: here.map((point) => this.described(point, written)), hovertemplate: "%{text}<extra></extra>",
      });
      if (inColor && wanted.intervals && here[0].low !== undefined) {
        if (here.length === 1) {
          const up = here.map((point) => factor * (point.high - point.y)), down = here.map((point) => factor * (point.y - point.low));
          loud.at(-1).error_y = { type: "data", array: up, arrayminus: down, symmetric: false, thickness: 1.2, width: 3, color: stroke };
        } else {
          bands.push({
            x: [...x, ...x.toReversed()], mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: stroke, opacity, hoverinfo: "skip",
            y: [...here.map((point) => factor * point.high), ...here.toReversed().map((point) => factor * point.low)],
          });
        }
      }
    }
    return [...quiet, ...bands, ...loud];
  }

  fullLine(points, wanted, factor, written) {
    const full = points.find((point) => point.method.base === "full");
    if (!full) return [];
    const everywhere = points.map((point) => point[wanted.x]);
    return [{
      /* A line also where all points stand at one place. */
      x: [Math.min(...everywhere) / 1.1, Math.max(...everywhere) * 1.1], y: [factor * full.y, factor * full.y], name: "full", mode: "lines+text",
      line: { color: color("ink"), dash: "dash", width: 1.3 }, text: ["full cache", ""], textposition: "top right",
      textfont: { color: color("ink") }, hovertemplate: `full cache: ${written(full.y)}<extra></extra>`,
    }];
  }

  described(point, written) {
    const lines = [`<b>${plain(point.method.text)}</b>`];
    const interval = point.low === undefined || point.low === point.high ? "" : ` (${written(point.low)} to ${written(point.high)})`;
    lines.push(written(point.y) + interval);
    lines.push(`${writtenBytes(point.held_bytes)} held, ${AXES.share.written(point.share)} of the full cache`);
    lines.push(`${AXES.slots.written(point.slots)} slots per KV head`);
    lines.push(point.whole ? `${point.examples} examples` : `${point.examples} of ${point.most} examples`);
    return lines.join("<br>");
  }

  layout(points, wanted, measure, quantity) {
    const axis = AXES[wanted.x];
    const x = points.map((point) => point[wanted.x]);
    const shown = points.length ? ticks(axis, Math.min(...x) / 1.1, Math.max(...x) * 1.1, this.box.clientWidth < NARROW ? 4 : 9) : [];
    const better = measure ? (measure.higher_is_better ? "higher is better" : "lower is better") : "lower is better";
    const title = measure ? `${measure.title}${measure.percent ? ", %" : ""}` : COSTS[quantity].title;
    const line = { gridcolor: color("rule"), linecolor: color("faint"), zeroline: false, automargin: true };
    return {
      autosize: true, showlegend: false, hovermode: "closest", margin: { l: 62, r: 18, t: 14, b: 52 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      hoverlabel: { bgcolor: color("card"), bordercolor: color("faint"), font: { color: color("ink") }, align: "left" },
      modebar: { color: color("faint"), activecolor: color("ink"), bgcolor: "rgba(0,0,0,0)" },
      xaxis: { ...line, type: "log", showgrid: false, title: { text: axis.title }, tickvals: shown, ticktext: shown.map(axis.written), ticks: "outside", tickcolor: color("faint") },
      yaxis: { ...line, title: { text: plain(`${title} (${better})`), font: { size: this.box.clientWidth < NARROW ? 11 : 14 } }, ...(measure?.percent ? { range: [0, 104] } : { rangemode: quantity === "nll" ? "normal" : "tozero" }) },
    };
  }
}

const number = (value) => String(+value.toPrecision(3));
/* As the tables have it. */
const writtenMean = (value, measure) => (measure.percent ? (100 * value).toFixed(1) : measure.name === "nll" ? value.toFixed(3) : number(value));

/* ---- predictions ---- */

const PER_PAGE = 20;

class Predictions {
  constructor(form) {
    this.form = form;
    this.section = winnow.sections.get(form.dataset.predictions);
    this.panel = form.closest(".panel");
    this.box = this.panel.querySelector(".examples");
    this.pager = this.panel.querySelector(".pager");
    this.page = 0;
    form.reset();
    form.addEventListener("input", () => {
      this.page = 0;
      this.show();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const button of all("button", this.pager)) {
      button.addEventListener("click", () => {
        this.page += Number(button.dataset.step);
        this.show();
        this.panel.scrollIntoView();
      });
    }
    this.panel.addEventListener("shown", () => this.show());
  }

  /* The file of a task, once; files are too large to be read before somebody looks. */
  load(task) {
    const file = `predictions-${this.section.number}-${task}.js`;
    this.loaded ??= new Map();
    if (!this.loaded.has(task)) {
      this.loaded.set(task, new Promise((done, failed) => {
        winnow.waiting.set(file, done);
        document.head.append(element("script", { src: `data/${file}`, onerror: () => failed(new Error(file)) }));
      }));
    }
    return this.loaded.get(task);
  }

  async show() {
    const { task } = chosen(this.form);
    try {
      const data = await this.load(task);
      if (chosen(this.form).task === task) this.render(data);
    } catch {
      this.box.textContent = `data/predictions-${this.section.number}-${task}.js is missing.`;
    }
  }

  render(data) {
    const wanted = chosen(this.form);
    const names = new Map(this.section.methods.map((method) => [method.text, method]));
    const shown = data.methods.map((text, index) => ({ text, index, ...names.get(text) })).filter(({ base, budget }) =>
      base === "full" || ((!wanted.method || base === wanted.method) && (!wanted.budget || !budget || budget === wanted.budget)));
    const words = wanted.text.toLowerCase();
    const found = data.examples.filter((example) => this.fits(example, shown, wanted.show) && (!words || this.holds(example, shown, words)));
    const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    this.box.replaceChildren(...found.slice(this.page * PER_PAGE, (this.page + 1) * PER_PAGE).map((example) => this.card(example, shown)));
    const leftOut = data.most > data.examples.length ? ` (of ${data.most.toLocaleString("en")} that there are)` : "";
    this.form.querySelector("output").value = `${found.length.toLocaleString("en")} of ${data.examples.length.toLocaleString("en")} examples${leftOut}`;
    this.pager.querySelector("span").textContent = `Page ${this.page + 1} of ${pages}`;
    const [back, on] = all("button", this.pager);
    back.disabled = this.page === 0;
    on.disabled = this.page === pages - 1;
  }

  fits(example, shown, show) {
    const said = shown.map(({ text, index }) => ({ text, score: example.said[index]?.[1] })).filter(({ score }) => score != null);
    const scores = said.map(({ score }) => score);
    if (show === "disagree") return new Set(scores).size > 1;
    if (show === "wrong") return scores.some((score) => score < 1);
    if (show === "lost") return said.some(({ text, score }) => text === "full" && score === 1) && scores.some((score) => score < 1);
    return true;
  }

  holds(example, shown, words) {
    const texts = [example.name, example.question, ...example.answers, ...shown.map(({ index }) => example.said[index]?.[0] ?? "")];
    return texts.some((text) => text.toLowerCase().includes(words));
  }

  card(example, shown) {
    const facts = Object.entries(example.facts).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ");
    const card = element("article", { className: "example" },
      element("h4", {}, `Example ${example.name} `, element("span", { className: "faint" }, facts)),
      element("p", { className: "question" }, example.question),
      element("p", { className: "right" }, element("b", {}, example.answers.length > 1 ? "Right answers:" : "Right answer:"),
        ...example.answers.map((answer) => element("span", {}, answer))));
    for (const { text, index } of shown) {
      const said = example.said[index];
      if (said) card.append(element("div", { className: "said" }, element("div", {}, text), verdict(said[1]),
        element("div", { className: "text" }, said[0] || "(nothing)", said[2] ? element("span", { className: "faint" }, " · the prompt had lost its middle") : "")));
    }
    return card;
  }
}

function verdict(score) {
  const [className, text] = score === null ? ["", "–"] : score >= 1 ? ["good", "✓ right"] : score <= 0 ? ["bad", "✗ wrong"] : ["", `${Math.round(100 * score)} %`];
  return element("div", { className: `verdict ${className}` }, text);
}

/* ---- start ---- */

document.documentElement.classList.add("scripts");
document.documentElement.dataset.theme = memory.get() ?? (dark.matches ? "dark" : "light");
addEventListener("DOMContentLoaded", () => {
  all("table.data").forEach(startSorting);
  all("[data-filters]").forEach(startFilters);
  all("[data-chart]").forEach((form) => new Chart(form));
  all("[data-predictions]").forEach((form) => new Predictions(form));
  startTheme();
  all(".tabs").forEach(startTabs);
});
