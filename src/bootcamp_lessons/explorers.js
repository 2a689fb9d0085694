// Four explorers that need no kernel: collectives, DDP's buckets, pipeline schedules, memory by kind.
//
// explore(element, kind, data) puts labelled controls and a picture into an element. The numbers are
// bootcamp.theory's, which explorers.py writes down for every choice; only drawing happens here,
// and for DDP the ring's formula, since its costs have too many values to write down.

const INK = "#222222", GREY = "#DDDDDD", PAPER = "#F4F4F4", VERMILLION = "#D55E00", BLUE = "#0072B2";
const WIDE = 860; // of every picture, in its own units

/** An element of the picture: SVG by name, with attributes and children or a text. */
function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const box = (x, y, width, height, fill, more = {}) =>
  svg("rect", { x, y, width: Math.max(width, 0), height, fill, stroke: INK, "stroke-width": 0.6, ...more });
const words = (x, y, text, more = {}) => svg("text", { x, y, "font-size": 13, fill: INK, ...more }, String(text));
const middle = { "text-anchor": "middle", "dominant-baseline": "central" };
const onWhite = { stroke: "white", "stroke-width": 4, "paint-order": "stroke" };
const line = (x1, y1, x2, y2, more = {}) => svg("line", { x1, y1, x2, y2, stroke: INK, ...more });

/** Boxes with what they mean, in a row. */
function key(looks, y) {
  let x = 0;
  return Object.entries(looks).flatMap(([name, fill]) => {
    const made = [box(x, y - 11, 16, 12, fill), words(x + 22, y, name)];
    x += 36 + 7.4 * name.length;
    return made;
  });
}

const seconds = (value) =>
  value >= 1 ? `${+value.toPrecision(3)} s` : value >= 1e-3 ? `${+(value * 1e3).toPrecision(3)} ms` : `${+(value * 1e6).toPrecision(3)} µs`;
const bytes = (value) => {
  const [unit, name] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1, "bytes"]].find(([least]) => value >= least) ?? [1, "bytes"];
  return `${+(value / unit).toPrecision(3)} ${name}`;
};

const KINDS = { parameters: BLUE, gradients: "#E69F00", "optimizer state": "#009E73", activations: GREY };
const ACTIONS = { F: ["#56B4E9", "forward"], B: ["#E69F00", "backward"], I: ["#F0E442", "backward, half I"], W: ["#8FD1B8", "half W"] };

/** Each picture: what it draws of a choice, as {title, height, parts, says}. */
export const PICTURES = {
  collective(data, { way: [collective, algorithm], ranks: asked, step }) {
    const ranks = Math.min(asked, data.most_ranks[collective] ?? asked);
    const run = data.runs[`${collective} ${algorithm} ${ranks}`];
    const at = Math.min(step, run.steps.length), held = run.moments[at], sends = at ? run.steps[at - 1] : [];
    const left = 90, column = (WIDE - left) / ranks, top = 66, all = 2 ** ranks - 1;
    const tall = run.names.length > 8 ? 24 : 34;
    const moved = new Set(sends.flatMap(([source, target, chunk]) => [`${source} ${chunk}`, `${target} ${chunk}`]));
    const parts = [words(0, 16, run.phases[at], { "font-weight": 600 })];
    const place = (rank, row) => [left + column * rank + column * 0.08, top + tall * row];
    run.names.forEach((name, row) => parts.push(words(0, top + tall * row + 20, name)));
    for (let rank = 0; rank < ranks; rank++) {
      parts.push(words(left + column * (rank + 0.5), 54, `rank ${rank}`, { ...middle, "font-weight": 600 }));
      run.names.forEach((_, row) => {
        const [x, y] = place(rank, row), now = held[rank][row], wanted = run.wanted[rank][row];
        const done = now && now === wanted, frame = moved.has(`${rank} ${row}`);
        const fill = !now ? PAPER : done ? "#8FD1B8" : (now & (now - 1)) ? "#FBEBCB" : "white";
        parts.push(box(x, y, column * 0.84, tall - 8, fill, { stroke: frame ? VERMILLION : INK, "stroke-width": frame ? 2.6 : 1, "stroke-dasharray": now ? "none" : "2 3" }));
        const from = [...Array(ranks).keys()].filter((one) => now & (1 << one));
        const inside = !now ? "" : now === all && run.adds ? `sum of ${ranks}` : run.adds ? from.join("+") : `from ${from[0]}`;
        parts.push(words(x + column * 0.42, y + (tall - 8) / 2, inside, { ...middle, "font-size": 12, "font-weight": done ? 600 : 400 }));
      });
    }
    const below = top + tall * run.names.length + 18;
    sends.forEach(([source, target, chunk], number) => {
      const x = (number % 4) * (WIDE / 4), y = below + 18 * Math.floor(number / 4);
      parts.push(words(x, y, `rank ${source} → rank ${target}: ${run.names[chunk]}`, { fill: VERMILLION, "font-size": 12 }));
    });
    const foot = below + 18 * Math.ceil(Math.max(sends.length, 1) / 4) + 12;
    run.totals.forEach((text, row) => parts.push(words(0, foot + 18 * row, text, { "font-size": 12 })));
    return { title: `${collective} by ${algorithm}, ${ranks} ranks: ${at ? `after step ${at}` : "before the first"} of ${run.steps.length}`, height: foot + 40, parts, says: `${run.phases[at]} ${run.totals.join(" ")}` };
  },

  ddp_step(data, { model, bucket, ranks, link, latency, compute }) {
    const shape = data.models[model], cut = shape.buckets[bucket], perSecond = data.links[link];
    let free = 0;
    const reduces = cut.sizes.map((size, i) => {
      // a ring: 2(N-1) messages one after another, each of size/N bytes (Hockney, 1994)
      const began = Math.max(cut.ready[i] * compute, free);
      free = began + 2 * (ranks - 1) * (latency + size / ranks / perSecond);
      return [began, free];
    });
    const ended = Math.max(compute, free), left = 110, scale = (WIDE - left - 10) / ended, parts = [];
    parts.push(words(0, 44, "computes"), words(0, 104, "sends and"), words(0, 120, "receives"));
    shape.forward.forEach(([from, to]) => parts.push(box(left + scale * compute * from, 24, scale * compute * (to - from), 34, "#D6ECFA")));
    shape.backward.forEach(([from, to]) => parts.push(box(left + scale * compute * from, 24, scale * compute * (to - from), 34, "#56B4E9")));
    reduces.forEach(([from, to], i) => {
      const early = Math.min(to, compute);
      if (from < compute) parts.push(box(left + scale * from, 90, scale * (early - from), 34, "#E69F00"));
      if (to > compute) parts.push(box(left + scale * Math.max(from, compute), 90, scale * (to - Math.max(from, compute)), 34, VERMILLION));
      if (reduces.length <= 14) parts.push(line(left + scale * cut.ready[i] * compute, 59, left + scale * from, 89));
      if (scale * (to - from) > 18) parts.push(words(left + scale * (from + to) / 2, 107, i, { ...middle, "font-size": 12 }));
    });
    parts.push(line(left + scale * ended, 14, left + scale * ended, 132, { "stroke-width": 2 }));
    const looks = { forward: "#D6ECFA", "backward, layer by layer": "#56B4E9", "all-reduce beside the backward": "#E69F00", "all-reduce that is waited for": VERMILLION };
    const waits = ended - compute, says = `${cut.sizes.length} buckets. Computing takes ${seconds(compute)}, and the rank then waits ${seconds(waits)} for its last bucket.`;
    parts.push(...key(looks, 158), words(0, 186, says));
    return { title: `Predicted: ${model} on ${ranks} ranks, a step of ${seconds(ended)}`, height: 196, parts, says, ended };
  },

  pipeline_schedule(data, { schedule, ranks, micro_batches }) {
    const chart = data.charts[`${schedule} ${ranks} ${micro_batches}`];
    if (typeof chart === "string") return { title: `${schedule}: not possible`, height: 40, parts: [words(0, 20, chart)], says: chart };
    const left = 60, scale = (WIDE - left) / chart.long, tall = 30, parts = [], kinds = new Set();
    for (let rank = 0; rank < ranks; rank++) {
      parts.push(words(0, tall * rank + 19, `rank ${rank}`), box(left, tall * rank + 2, scale * chart.long, tall - 4, GREY, { stroke: "none" }));
    }
    chart.spans.forEach(([rank, kind, other, number, began, ended]) => {
      kinds.add(kind);
      const x = left + scale * began, width = scale * (ended - began), y = tall * rank + 2;
      parts.push(box(x, y, width, tall - 4, ACTIONS[kind][0]));
      if (other) parts.push(box(x, y, width, tall - 4, "black", { "fill-opacity": 0.22, stroke: "none" }));
      if (width > 9 * String(number).length) parts.push(words(x + width / 2, y + tall / 2 - 2, number, { ...middle, "font-size": 11, "font-weight": other ? 600 : 400 }));
    });
    const looks = Object.fromEntries(Object.entries(ACTIONS).filter(([kind]) => kinds.has(kind)).map(([, [fill, name]]) => [name, fill]));
    parts.push(...key({ ...looks, waits: GREY }, tall * ranks + 26), words(0, tall * ranks + 52, chart.says));
    return { title: `${schedule}, ${ranks} ranks, ${micro_batches} micro-batches`, height: tall * ranks + 62, parts, says: chart.says };
  },

  memory(data, { model, ranks, precision, samples, kept }) {
    const held = data.held[[model, ranks, precision, samples, kept].join("|")];
    const totals = held.map((row) => (typeof row[1] === "string" ? 0 : row[1].reduce((a, b) => a + b)));
    const left = 190, most = Math.max(...totals), scale = (WIDE - left - 190) / most;
    const top = 22, tall = 34, low = top + tall * held.length, parts = [], lines = [];
    let named = Infinity; // where the last name is: a smaller GPU's too near to it is left out
    for (const gpu of data.gpus.filter((size) => size * 1e9 < most).reverse()) {
      const x = left + scale * gpu * 1e9;
      if (x > named - 48) continue;
      named = x;
      lines.push(line(x, top, x, low, { "stroke-dasharray": "5 4", "stroke-width": 1.6 }));
      lines.push(words(x, 14, `${gpu} GB`, { "text-anchor": "middle", "font-size": 12, ...onWhite }));
    }
    held.forEach(([name, kinds], row) => {
      const y = top + tall * row + 4;
      parts.push(words(0, y + 18, name));
      if (typeof kinds === "string") {
        parts.push(words(left, y + 18, kinds, { "font-style": "italic", ...onWhite }));
        return;
      }
      let x = left;
      Object.values(KINDS).forEach((fill, kind) => {
        parts.push(box(x, y, scale * kinds[kind], tall - 8, fill));
        x += scale * kinds[kind];
      });
      const fits = data.gpus.find((gpu) => totals[row] <= gpu * 1e9);
      const said = `${bytes(totals[row])}: ${fits ? `fits ${fits} GB` : "fits none"}`;
      parts.push(words(x + 8, y + 18, said, onWhite));
    });
    const boxes = parts.filter((part) => part.tagName === "rect");
    const texts = parts.filter((part) => part.tagName !== "rect");
    const inOrder = [...boxes, ...lines, ...texts];
    inOrder.push(...key(KINDS, low + 24));
    const says = held.map(([name, kinds], row) => `${name}: ${typeof kinds === "string" ? kinds : bytes(totals[row])}`).join("; ");
    const title = `Predicted: what one of ${ranks} ranks holds of ${model}`;
    return { title, height: low + 34, parts: inOrder, says };
  },
};

/** A labelled control: a slider over a list of numbers, a drop-down list over words. */
function control(one, changed) {
  const label = document.createElement("label"), many = one.options.length;
  label.textContent = `${one.label} `;
  let input, shown;
  if (one.slides) {
    input = Object.assign(document.createElement("input"), { type: "range", min: 0, max: many - 1, step: 1 });
    input.value = one.first;
    shown = document.createElement("output");
    shown.textContent = one.options[one.first][0];
  } else {
    input = document.createElement("select");
    one.options.forEach(([text], i) => input.append(new Option(text, i, i === one.first, i === one.first)));
  }
  input.name = one.name;
  input.addEventListener("input", () => {
    if (shown) shown.textContent = one.options[input.value][0];
    changed();
  });
  label.append(input, ...(shown ? [" ", shown] : []));
  return { label, value: () => one.options[input.value][1] };
}

/** Put the controls and the picture of one explorer into an element. */
export function explore(element, kind, data) {
  const bar = Object.assign(document.createElement("div"), { className: "explorer-controls" });
  const title = Object.assign(document.createElement("p"), { className: "explorer-title" });
  const picture = document.createElement("div");
  title.setAttribute("aria-live", "polite");
  const draw = () => {
    const choice = Object.fromEntries(data.controls.map((one, i) => [one.name, controls[i].value()]));
    const made = PICTURES[kind](data, choice);
    title.textContent = made.title;
    picture.replaceChildren(svg("svg", { viewBox: `-2 -2 ${WIDE + 4} ${made.height + 4}`, role: "img", "aria-label": `${made.title}. ${made.says}`, width: "100%" }, ...made.parts));
  };
  const controls = data.controls.map((one) => control(one, draw));
  bar.append(...controls.map((one) => one.label));
  element.replaceChildren(bar, title, picture);
  draw();
}
