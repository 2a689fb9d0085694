// Four explorers: a collective's steps, a step of DDP, pipeline schedules, memory by kind.
//
// One file for all places. JupyterLab loads it as a module (anywidget calls `render`); for the static
// pages and the slides explorers.py makes a plain script of it, which starts every .explorer. The
// numbers are bootcamp.costs's, which explorers.py writes down for every choice; here they are drawn,
// and two things are calculated since they have too many values to be written down: DDP's all-reduces
// by the ring's formula, and activations as a multiple of the samples.
//
// Nothing moves unless a control is moved, so there is no motion to reduce. Colours that stand on the
// page are mixed with its text colour: they follow light and dark themes.

const DARK = "#222222"; // on the fills below, which are light in every theme
const INK = "currentColor", FAINT = "color-mix(in srgb, currentColor 22%, transparent)";
const STRONG = "color-mix(in srgb, #D55E00 72%, currentColor)";
const BLUE = "#0072B2", SKY = "#56B4E9", PALE_SKY = "#D6ECFA", ORANGE = "#E69F00", PALE_ORANGE = "#FBEBCB";
const GREEN = "#009E73", MINT = "#8FD1B8", YELLOW = "#F0E442", VERMILLION = "#E8743B";
const LETTERS = 14, WIDEST = 1000, NARROWEST = 340; // units: pixels where letters are LETTERS high

const KINDS = {
  parameters: { fill: BLUE }, gradients: { fill: ORANGE, hatch: "/" },
  "optimizer state": { fill: GREEN, hatch: "-" }, activations: { fill: "#D0D0D0", hatch: "\\" },
};
const ACTIONS = {
  F: [{ fill: SKY }, "forward"], B: [{ fill: ORANGE }, "backward"],
  I: [{ fill: YELLOW }, "backward, half I: of the input"], W: [{ fill: MINT, hatch: "/" }, "half W: of the weights"],
};
const LANES = {
  forward: { fill: PALE_SKY }, "backward by layer": { fill: SKY },
  "all-reduce beside backward": { fill: ORANGE }, "all-reduce waited for": { fill: VERMILLION, hatch: "/" },
};
const STATES = { "as asked for": { fill: MINT }, "a part of the sum": { fill: PALE_ORANGE }, "own alone": { fill: "#FFFFFF" } };

/** An element of the picture: SVG by name, with attributes and children or a text. */
function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** An element of the page, with properties and children. */
function html(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const words = (x, y, text, more = {}) => svg("text", { x, y, "font-size": 14, fill: INK, ...more }, String(text));
const line = (x1, y1, x2, y2, more = {}) => svg("line", { x1, y1, x2, y2, stroke: INK, ...more });
const centred = { "text-anchor": "middle", "dominant-baseline": "central" };
const within = (x, y, text, more = {}) => words(x, y, text, { ...centred, fill: DARK, "font-size": 12, ...more });
const onPage = { stroke: "var(--explorer-paper)", "stroke-width": 4, "paint-order": "stroke" };

/** A box, and its hatch as a path: no colour carries a meaning alone. */
function box(x, y, width, height, { fill, hatch }, more = {}) {
  const wide = Math.max(width, 0);
  const made = [svg("rect", { x, y, width: wide, height, fill, stroke: DARK, "stroke-width": 0.6, ...more })];
  if (!hatch) return made;
  let path = "";
  for (let shift = hatch === "-" ? 5 : 4 - height; shift < (hatch === "-" ? height : wide); shift += 9) {
    const from = Math.max(0, -shift), to = Math.min(height, wide - shift);
    const at = (t) => `${hatch === "/" ? x + shift + t : x + wide - shift - t} ${y + height - t}`;
    path += hatch === "-" ? `M${x} ${y + shift}h${wide}` : `M${at(from)}L${at(to)}`;
  }
  return [...made, svg("path", { d: path, stroke: "white", "stroke-width": 1.5, "stroke-opacity": 0.75, fill: "none" })];
}

/** An arrow along a path. */
function arrow(path, x, y, turn) {
  const look = { stroke: STRONG, "stroke-width": 2, fill: "none" };
  return [svg("path", { d: path, ...look }), svg("path", { d: "M-7 -4.5L1 0L-7 4.5Z", fill: STRONG, transform: `translate(${x} ${y}) rotate(${turn})` })];
}

const wordWidth = (word) => 7 * String(word).length; // of 13 pixels, about

/** Bars over names, the chosen one marked, each with its value where there is room; null: no bar. */
function graph([x, y, width, height], title, names, values, { chosen, shown, least }) {
  const most = Math.max(...values, 1e-12), step = width / names.length, tall = height - 56, foot = y + height - 18;
  const parts = [words(x, y + 12, title, { "font-weight": 600 })];
  const room = Math.max(...values.map((value) => (value === null ? 0 : shown(value).length))) * 7.4 < step;
  names.forEach((name, i) => {
    const value = values[i], middle = x + step * (i + 0.5), marked = names[i] === chosen;
    const high = value === null ? 0 : (tall * value) / most;
    parts.push(...box(x + step * i + step * 0.16, foot - high, step * 0.68, high, { fill: marked ? VERMILLION : BLUE }, { stroke: "none" }));
    const look = { "text-anchor": "middle", "font-size": 13, "font-weight": marked ? 700 : 400, ...onPage };
    if (room || marked) parts.push(words(middle, foot - high - 5, value === null ? "–" : shown(value), look));
    const beside = Math.abs(i - names.indexOf(chosen)) === 1 ? wordWidth(chosen) : 0;
    if (marked || step > Math.max(wordWidth(name), (wordWidth(name) + beside) / 2)) parts.push(words(middle, foot + 14, name, look));
  });
  parts.push(line(x, foot, x + width, foot));
  if (least) parts.push(line(x, foot - (tall * least) / most, x + width, foot - (tall * least) / most, { "stroke-dasharray": "6 4", "stroke-width": 1.6 }));
  return parts;
}

const counted = (number, noun, ending = "s") => `${number} ${noun}${number === 1 ? "" : ending}`;
const rounded = (value) => +value.toPrecision(3);
const seconds = (value) =>
  value >= 1 ? `${rounded(value)} s` : value >= 1e-3 ? `${rounded(value * 1e3)} ms` : `${rounded(value * 1e6)} µs`;
const bytes = (value) => {
  const [unit, name] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1, "bytes"]].find(([least]) => value >= least) ?? [1, "bytes"];
  return `${rounded(value / unit)} ${name}`;
};

/** What each rank holds, by chunk; of an all-to-all a row is a step, with a box to send and one to get. */
function chunks(run, at, ranks, place) {
  const parts = [], all = 2 ** ranks - 1, sends = at ? run.steps[at - 1] : [];
  const moved = new Set(sends.flatMap(([source, target, chunk]) => [`${source} ${chunk}`, `${target} ${chunk}`]));
  for (let rank = 0; rank < ranks; rank++) {
    for (let chunk = 0; chunk < run.chunks.length; chunk++) {
      const spot = place(rank, chunk);
      if (!spot) continue;
      const [x, y, width, height] = spot, now = run.moments[at][rank][chunk], done = now && now === run.wanted[rank][chunk];
      const look = !now ? { fill: "none" } : done ? STATES["as asked for"] : now & (now - 1) ? STATES["a part of the sum"] : STATES["own alone"];
      const frame = moved.has(`${rank} ${chunk}`) ? { stroke: STRONG, "stroke-width": 3 } : now ? {} : { stroke: INK };
      parts.push(...box(x, y, width, height, look, { ...frame, "stroke-dasharray": now ? "none" : "2 3" }));
      const from = [...Array(ranks).keys()].filter((one) => now & (1 << one));
      const inside = !now ? "" : run.pairs ? run.pairs[chunk].join("→") : !run.adds ? `from ${from[0]}` : now === all ? `sum of ${ranks}` : from.join("+");
      const size = Math.min(12, (1.7 * width) / Math.max(inside.length, 1));
      parts.push(within(x + width / 2, y + height / 2, inside, { "font-size": size, "font-weight": done ? 700 : 400 }));
    }
  }
  return parts;
}

/** An arrow for each send: along the ring, or as an arc above a tree's boxes. */
function sent(sends, place, isTree) {
  return sends.flatMap(([source, target, chunk]) => {
    const [x, y, width, height] = place(source, chunk), [toX] = place(target, chunk), middle = y + height / 2;
    if (isTree) {
      const from = x + width / 2, to = toX + width / 2, up = y - 8 - Math.min(26, Math.abs(to - from) / 5), turn = to > from ? 60 : 120;
      return arrow(`M${from} ${y}Q${(from + to) / 2} ${2 * up - y + 4} ${to} ${y - 3}`, to, y - 2, turn);
    }
    if (toX > x) return arrow(`M${x + width} ${middle}H${toX - 5}`, toX - 2, middle, 0);
    return [...arrow(`M${x + width} ${middle}h8`, x + width + 11, middle, 0), ...arrow(`M${toX - 14} ${middle}h8`, toX - 2, middle, 0)];
  });
}

/** When each bucket's all-reduce begins and ends, over a ring: 2(N-1) messages of size/N bytes each, one
 * after another (Hockney, 1994). */
function reduces(cut, { ranks, bytes_per_second, latency, compute_seconds }) {
  let free = 0;
  return cut.sizes.map((size, i) => {
    const began = Math.max(cut.ready[i] * compute_seconds, free);
    free = began + 2 * (ranks - 1) * (latency + size / ranks / bytes_per_second);
    return [began, free];
  });
}

/** Ranks as rows, their actions as boxes with the number of the micro-batch, waiting in grey. */
function schedule({ ranks, long }, left, top, wide) {
  const scale = (wide - left - 2) / long, tall = 26, parts = [];
  ranks.forEach((actions, rank) => {
    const y = top + tall * rank;
    parts.push(words(0, y + 17, `rank ${rank}`), ...box(left, y + 2, scale * long, tall - 4, { fill: FAINT }, { stroke: "none" }));
    for (const [kind, other, number, began, ended] of actions) {
      const x = left + scale * began, width = scale * (ended - began);
      parts.push(...box(x, y + 2, width, tall - 4, ACTIONS[kind][0]));
      if (other) parts.push(...box(x, y + 2, width, tall - 4, { fill: "black" }, { "fill-opacity": 0.22, stroke: "none" }));
      if (width > 8 * String(number).length) parts.push(within(x + width / 2, y + tall / 2, number, { "font-weight": other ? 700 : 400 }));
    }
  });
  return parts;
}

/** A graph's frame in the left or the right half of the picture, or below each other on a narrow page. */
function half(which, top, wide, height) {
  return wide < 620 ? [0, top + which * (height + 8), wide, height] : [which * (wide / 2 + 12), top, wide / 2 - 12, height];
}

/** Each picture of a choice: {title, height, parts, key, says, notes}; most: how far a slider may go. */
const PICTURES = {
  collective(data, { way, ranks, step }, wide) {
    const run = data.runs[`${way} ${ranks}`], at = Math.min(step, run.steps.length), sends = at ? run.steps[at - 1] : [];
    const isTree = run.chunks.length === 1 && way.endsWith("tree"), left = 84, column = (wide - left - 14) / ranks;
    const rows = run.pairs ? ["stays", ...[...Array(ranks).keys()].slice(1).map((one) => `step ${one}`)] : run.chunks;
    const tall = rows.length > 4 ? 26 : 32, top = isTree ? 66 : 30, low = top + tall * rows.length, body = 0.8 * column;
    const place = (rank, chunk) => {
      const x = left + column * rank + column * 0.1, pair = run.pairs?.[chunk];
      if (!pair) return [x, top + tall * chunk, body, tall - 7];
      const row = (pair[1] - pair[0] + ranks) % ranks, y = top + tall * row;
      if (!row) return pair[0] === rank ? [x, y, body, tall - 7] : null;
      return pair[0] === rank ? [x, y, body / 2 - 1, tall - 7] : pair[1] === rank ? [x + body / 2 + 1, y, body / 2 - 1, tall - 7] : null;
    };
    const parts = rows.map((name, row) => words(0, top + tall * row + tall / 2 + 1, name));
    parts.push(words(0, low + 12, "sends now"), words(0, low + 48, "has sent"));
    const most = Math.max(...run.sent.at(-1)), named = run.chunks.length > 1 && !run.pairs;
    for (let rank = 0; rank < ranks; rank++) {
      const middle = left + column * (rank + 0.5), mine = sends.filter(([source]) => source === rank);
      parts.push(words(middle, 14, `rank ${rank}`, { "text-anchor": "middle", "font-weight": 600 }));
      const told = mine.length ? [named ? run.chunks[mine[0][2]] : "", `to rank ${mine[0][1]}`].filter(Boolean) : ["nothing"];
      const said = { "text-anchor": "middle", "font-size": 13 }, now = { ...said, fill: mine.length ? STRONG : INK };
      told.forEach((text, row) => parts.push(words(middle, low + 12 + 15 * row, text, now)));
      parts.push(words(middle, low + 48, `${rounded(run.sent[at][rank])} S`, said));
      const x = middle - body / 2, done = (body * run.sent[at][rank]) / most;
      parts.push(...box(x, low + 54, body, 8, { fill: "none" }, { stroke: INK }));
      parts.push(...box(x, low + 54, done, 8, { fill: BLUE }, { stroke: "none" }));
    }
    parts.push(...chunks(run, at, ranks, place), ...(run.pairs ? [] : sent(sends, place, isTree)));
    const when = at ? `after step ${at} of ${run.steps.length}` : `before the ${counted(run.steps.length, "step")}`;
    const title = `${way[0].toUpperCase()}${way.slice(1)}, ${ranks} ranks: ${when}`;
    const key = run.adds ? STATES : { "as asked for": STATES["as asked for"], "not where it is asked for": STATES["own alone"] };
    return { title, height: low + 64, parts, key, says: run.phases[at], notes: [run.key, ...run.totals], most: { step: run.steps.length } };
  },

  ddp_step(data, choice, wide) {
    const { model, bucket, ranks, compute_seconds: compute } = choice, shape = data.models[model], cut = shape.buckets[bucket];
    const spans = reduces(cut, choice), ended = Math.max(compute, spans.at(-1)[1]);
    const left = 84, scale = (wide - left - 4) / ended, [forward, backward, early, late] = Object.values(LANES);
    const parts = [words(0, 19, "computes"), words(0, 69, "sends and"), words(0, 85, "receives")];
    const lane = (from, to, y, look) => parts.push(...box(left + scale * from, y, scale * (to - from), 28, look));
    shape.forward.forEach(([from, to]) => lane(compute * from, compute * to, 2, forward));
    shape.backward.forEach(([from, to]) => lane(compute * from, compute * to, 2, backward));
    spans.forEach(([from, to], i) => {
      if (from < compute) lane(from, Math.min(to, compute), 60, early);
      if (to > compute) lane(Math.max(from, compute), to, 60, late);
      if (spans.length <= 14) parts.push(line(left + scale * cut.ready[i] * compute, 31, left + scale * from, 59));
      const middle = left + (scale * (from + to)) / 2, letters = 8 * String(i).length;
      if (scale * (to - from) <= letters + 6) return;
      parts.push(...box(middle - letters / 2 - 2, 66, letters + 4, 16, { fill: "white" }, { stroke: "none" }));
      parts.push(within(middle, 74, i, { "font-size": 13 }));
    });
    parts.push(line(left + scale * ended, 0, left + scale * ended, 92, { "stroke-width": 2.5 }));
    const caps = data.controls[0].options.map(([, cap]) => cap), ends = caps.map((cap) => Math.max(compute, reduces(shape.buckets[cap], choice).at(-1)[1]));
    const shown = (value) => (ended >= 1 ? `${rounded(value)}` : `${rounded(value * 1e3)}`);
    const title = `step by bucket cap, ${ended >= 1 ? "s" : "ms"}; dashed: computing alone`;
    parts.push(...graph([0, 102, wide, 118], title, caps, ends, { chosen: bucket, shown, least: compute }));
    const says = `${counted(cut.sizes.length, "bucket")}; ${seconds(compute)} computing, ${seconds(ended - compute)} waiting.`;
    return { title: `Predicted: ${model} on ${ranks} ranks, a step of ${seconds(ended)}`, height: 222, parts, key: LANES, says, notes: data.notes };
  },

  pipeline_schedule(data, { schedule: name, ranks, micro_batches }, wide) {
    const title = `${name}, ${counted(ranks, "rank")}, ${counted(micro_batches, "micro-batch", "es")}`;
    const chart = data.charts[`${name} ${ranks} ${micro_batches}`];
    if (typeof chart === "string") return { title: `${name}: not possible`, height: 4, parts: [], key: {}, says: chart, notes: [] };
    const parts = [words(0, 14, `in theory: ${chart.says}`, { "font-weight": 600 }), ...schedule(chart, 56, 22, wide)];
    const top = 34 + 26 * ranks, actions = chart.ranks.flat();
    const kinds = new Set(actions.map(([kind]) => kind));
    const key = Object.fromEntries(Object.entries(ACTIONS).filter(([kind]) => kinds.has(kind)).map(([, [look, told]]) => [told, look]));
    const many = data.micro_batches, bubbles = many.map((one) => data.charts[`${name} ${ranks} ${one}`]?.bubble ?? null);
    const shares = chart.held.map((held) => (100 * held) / micro_batches);
    const decimal = { chosen: micro_batches, shown: (value) => value.toFixed(2) };
    parts.push(...graph(half(0, top, wide, 120), "bubble (idle / busy) by micro-batches", many, bubbles, decimal));
    const names = shares.map((_, rank) => `rank ${rank}`);
    parts.push(...graph(half(1, top, wide, 120), "peak activations, % of the batch's", names, shares, { shown: (value) => `${Math.round(value)}` }));
    const notes = ["Numbers are micro-batches; time by theory, stages that take equally long."];
    if (actions.some(([, other]) => other)) notes.push("Bold on a darker ground: the rank's other stage.");
    return { title, height: half(1, top, wide, 120)[1] + 122, parts, key: { ...key, waits: { fill: FAINT } }, says: `in theory: ${chart.says}.`, notes, silent: true };
  },

  memory(data, { model, ranks, precision, samples, kept, shard }, wide) {
    const of = [model, precision, ranks].join("|"), activations = data.activations[`${of}|${kept}`];
    const rows = data.state[of].map(([name, state, row]) => [name, typeof state === "string" ? state : [...state, samples * activations[row]]]);
    const inRows = data.rows[`${of}|${shard}`]; // HSDP: a rank has as many samples as any, so rows[0]'s activations
    rows.splice(5, 0, [`HSDP, rows of ${shard}`, typeof inRows === "string" ? inRows : [...inRows, rows[0][1][3]]]);
    const totals = rows.map(([, held]) => (typeof held === "string" ? 0 : held.reduce((a, b) => a + b)));
    const left = 138, most = Math.max(...totals), scale = (wide - left - 158) / most, tall = 28, top = 20, low = top + tall * rows.length;
    const parts = [], over = [];
    let named = Infinity; // where the last name is: a smaller GPU's too near to it is left out
    for (const gpu of data.gpus.filter((size) => size * 1e9 < most).reverse()) {
      const x = left + scale * gpu * 1e9;
      if (x > named - 46) continue;
      named = x;
      over.push(line(x, top, x, low, { "stroke-dasharray": "5 4", "stroke-width": 1.6 }));
      over.push(words(x, 13, `${gpu} GB`, { "text-anchor": "middle", "font-size": 13 }));
    }
    const said = rows.map(([name, held], row) => {
      const y = top + tall * row + 4, fits = data.gpus.find((gpu) => totals[row] <= gpu * 1e9);
      const told = typeof held === "string" ? held : `${bytes(totals[row])}: ${fits ? `fits ${fits} GB` : "fits none"}`;
      let x = left;
      Object.values(KINDS).forEach((look, kind) => {
        const width = typeof held === "string" ? 0 : scale * held[kind];
        if (width) parts.push(...box(x, y, width, tall - 8, look));
        x += width;
      });
      const reason = { "font-style": "italic", "font-size": wide < 400 ? 12 : 14 };
      const paper = { x: x + 3, y, width: 7.3 * told.length + 6, height: tall - 8, fill: "var(--explorer-paper)" };
      over.push(words(0, y + 16, name), svg("rect", paper));
      over.push(words(x + 6, y + 16, told, typeof held === "string" ? reason : {}));
      return `${name}: ${told}`;
    });
    const title = `Predicted: what one of ${counted(ranks, "rank")} holds of ${model}`;
    return { title, height: low + 2, parts: [...parts, ...over], key: KINDS, says: `${said.join("; ")}.`, notes: data.notes, silent: true };
  },
};

/** A labelled control: a slider over a list, or a drop-down list. */
function control(one, moved) {
  const values = one.options.map(([, value]) => value), last = values.length - 1;
  const shown = html("output", { ariaHidden: "true" }); // aria-valuetext says it
  const input = one.is_slider
    ? html("input", { type: "range", min: 0, max: last, step: 1 })
    : html("select", {}, ...one.options.map(([text], i) => new Option(text, i)));
  const tell = () => {
    shown.textContent = one.is_slider ? one.options[input.value][0] : "";
    if (one.is_slider) input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.name = one.name;
  input.dataset.lmSuppressShortcuts = "true"; // JupyterLab leaves the keys to it
  input.addEventListener("input", () => moved());
  return {
    label: html("label", {}, `${one.label} `, input, ...(one.is_slider ? [shown] : [])),
    get: () => values[input.value],
    set(value) {
      if (values.includes(value)) input.value = values.indexOf(value);
      tell();
    },
    limit(most) { // of the numbers that are listed
      input.max = values.filter((value) => value <= most).length - 1;
      tell();
    },
  };
}

const STYLE = `
.explorer { --explorer-paper: var(--jp-layout-color0, var(--vscode-editor-background, var(--color-background-primary, var(--paper, Canvas))));
  color: var(--jp-content-font-color1, var(--vscode-foreground, inherit)); max-width: 100%; overflow-x: auto; }
.explorer-controls { display: flex; flex-wrap: wrap; gap: .4em 1.4em; padding: 3px; }
.explorer-controls label { display: inline-flex; align-items: center; gap: .4em; }
.explorer-controls output { min-width: 3.4em; font-variant-numeric: tabular-nums; }
.explorer-controls input, .explorer-controls select { font: inherit; margin: 0; accent-color: ${BLUE}; }
.explorer-controls input { width: 9em; }
.explorer-controls select { color: inherit; background: var(--explorer-paper); border: 1px solid; border-radius: 4px; padding: .1em .3em; }
.explorer-controls :focus-visible { outline: 3px solid ${STRONG}; outline-offset: 2px; }
.explorer .explorer-title { font-weight: 600; margin: .5em 0 .1em; }
.explorer .explorer-says { margin: 0 0 .3em; }
.explorer .explorer-notes { margin: .3em 0 0; font-size: .86em; line-height: 1.35; }
.explorer-key { display: flex; flex-wrap: wrap; gap: .1em 1.2em; margin: .2em 0 .4em; }
.explorer-key span { display: inline-flex; align-items: center; gap: .4em; }
.explorer svg { display: block; font-family: inherit; max-width: 100%; height: auto; max-height: var(--explorer-height, none); }
@media print { .explorer-controls { display: none; } }
`;

/** What the looks mean, as a row of boxes with words. */
const keyOf = (looks, unit) =>
  Object.entries(looks).map(([name, look]) =>
    html("span", {}, svg("svg", { viewBox: "0 0 22 14", width: 22 * unit, height: 14 * unit, "aria-hidden": true }, ...box(1, 1, 20, 12, look)), name));

/**
 * Put the controls and the picture of one explorer into an element.
 *
 * choice: values of controls by name, to begin with. tell: called with all of them when a reader has
 * moved one. Returns {choose, stop}: choose(values) moves the controls from outside.
 */
function explore(element, kind, data, choice = {}, tell = () => {}) {
  const title = html("p", { className: "explorer-title" }), says = html("p", { className: "explorer-says" }), key = html("div", { className: "explorer-key" });
  const picture = html("div"), notes = html("p", { className: "explorer-notes foot" });
  title.setAttribute("aria-live", "polite");
  element.classList.add("explorer");
  let width = -1;
  const draw = () => {
    width = element.clientWidth;
    const unit = (parseFloat(getComputedStyle(element).fontSize) || LETTERS) / LETTERS; // not yet on the page: none
    const pixels = width || Number(element.dataset.width) || WIDEST; // hidden: as wide as it will be
    const wide = Math.min(Math.max(pixels / unit - 6, NARROWEST), WIDEST), made = PICTURES[kind](data, now(), wide);
    for (const [name, most] of Object.entries(made.most ?? {})) controls[name].limit(most);
    title.textContent = made.title;
    key.replaceChildren(...keyOf(made.key, unit));
    const look = { viewBox: `-2 -2 ${wide + 4} ${made.height + 4}`, width: (wide + 4) * unit, height: (made.height + 4) * unit };
    picture.replaceChildren(svg("svg", { ...look, role: "img", "aria-label": `${made.title}. ${made.says}` }, ...made.parts));
    says.textContent = made.silent ? "" : made.says; // silent: the picture has these words
    notes.textContent = made.notes.join(" ");
  };
  const moved = () => {
    choose(now());
    tell(now());
  };
  const controls = Object.fromEntries(data.controls.map((one) => [one.name, control(one, moved)]));
  const now = () => Object.fromEntries(Object.entries(controls).map(([name, one]) => [name, one.get()]));
  const choose = (values) => {
    for (const [name, value] of Object.entries(values)) controls[name].set(value);
    draw();
  };
  const bar = html("div", { className: "explorer-controls" }, ...Object.values(controls).map((one) => one.label));
  element.replaceChildren(html("style", { textContent: STYLE }), bar, title, says, key, picture, notes);
  choose({ ...Object.fromEntries(data.controls.map((one) => [one.name, one.options[one.initial][1]])), ...choice });
  const watch = new ResizeObserver(() => element.clientWidth && element.clientWidth !== width && draw());
  watch.observe(element);
  return { choose, stop: () => watch.disconnect() };
}

/** Every explorer of a page that brings its numbers along: a div of this class with a script of JSON. */
function exploreAll() {
  for (const element of document.querySelectorAll(".explorer[data-kind]")) {
    explore(element, element.dataset.kind, JSON.parse(element.querySelector("script").textContent));
  }
}

/** For anywidget: the kernel and every view of a cell have the same choice. */
function render({ model, el }) {
  const tell = (choice) => {
    model.set("choice", choice);
    model.save_changes();
  };
  const view = explore(el.appendChild(html("div")), model.get("kind"), model.get("data"), model.get("choice"), tell);
  const follow = () => view.choose(model.get("choice"));
  model.on("change:choice", follow);
  return () => {
    model.off("change:choice", follow);
    view.stop();
  };
}

export default { render };
