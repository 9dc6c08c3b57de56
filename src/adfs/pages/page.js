"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const stage = document.getElementById("stage"), svg = document.getElementById("plot"), tip = document.getElementById("tip");
  const NS = "http://www.w3.org/2000/svg";
  const margin = { left: 74, right: 20, top: 14, bottom: 50 };
  const state = { x: "time", xlog: false, ylog: true, seeds: false, off: new Set() };
  let view = null;

  function make(tag, attributes, parent, text) {
    const element = document.createElementNS(NS, tag);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  // The choices stand in the address, so that a view can be linked to.
  function readAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (data.axes[wanted.get("x")]) state.x = wanted.get("x");
    for (const key of ["xlog", "ylog", "seeds"]) if (wanted.has(key)) state[key] = wanted.get(key) === "1";
    state.off = new Set((wanted.get("off") || "").split(",").filter(Boolean).map(Number));
  }
  function writeAddress() {
    const words = ["x=" + state.x, "xlog=" + Number(state.xlog), "ylog=" + Number(state.ylog), "seeds=" + Number(state.seeds)];
    if (state.off.size) words.push("off=" + [...state.off].join(","));
    try { history.replaceState(null, "", "#" + words.join("&")); } catch (error) { /* a page kept in a frame */ }
  }

  function short(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e3 && size < 1e7) return Number(value.toPrecision(4)).toLocaleString("en");
    if (size >= 1e7 || size < 1e-2) {
      const power = Math.floor(Math.log10(size) + 1e-9), front = Number((value / 10 ** power).toPrecision(3));
      return (front === 1 ? "" : front + "·") + "10" + raised(power);
    }
    return String(Number(value.toPrecision(4)));
  }
  function raised(power) {
    return [...String(power)].map(c => c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]).join("");
  }

  function ticks(low, high, logarithmic, count) {
    const found = [];
    if (logarithmic) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
      const step = Math.max(1, Math.ceil((last - first) / count));
      for (let k = first; k <= last; k += step) found.push(10 ** k);
      if (found.length > 1) return found;
      found.length = 0;
    }
    const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw)), nice = [1, 2, 5, 10].find(k => k * size >= raw) * size;
    for (let k = Math.ceil(low / nice); k * nice <= high * (1 + 1e-12); k++) found.push(k * nice);
    return found;
  }

  function scale(low, high, logarithmic, start, end) {
    const f = logarithmic ? Math.log10 : (v => v), a = f(low), b = f(high);
    const to = v => start + (end - start) * (f(v) - a) / (b - a);
    to.invert = p => { const u = a + (b - a) * (p - start) / (end - start); return logarithmic ? 10 ** u : u; };
    return to;
  }

  function shown() {
    return data.methods.map((method, number) => ({ method, number, curve: method.curves[state.x] }))
      .filter(one => one.curve && !state.off.has(one.number));
  }

  function draw() {
    const width = Math.max(320, stage.clientWidth), height = 440;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const curves = shown();
    const left = margin.left, right = width - margin.right, top = margin.top, bottom = height - margin.bottom;
    if (!curves.length) {
      make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg,
        data.methods.length === state.off.size ? "no method chosen" : "none of these methods sends messages");
      view = null; finish(); return;
    }
    let xlow = Infinity, xhigh = 0, ylow = Infinity, yhigh = 0;
    const reached = curves.filter(one => one.curve.reached), span = reached.length ? reached : curves;
    for (const { curve } of span) xhigh = Math.max(xhigh, curve.reached || curve.x[curve.x.length - 1]);
    for (const { curve } of curves) {
      xlow = Math.min(xlow, curve.x.find(v => v > 0));
      ylow = Math.min(ylow, ...curve.low); yhigh = Math.max(yhigh, ...curve.high);
    }
    xhigh *= state.xlog ? 1.3 : 1.06;
    ylow = state.ylog ? Math.max(ylow, 0.3 * data.target) : 0;
    const X = scale(state.xlog ? xlow : 0, xhigh, state.xlog, left, right);
    const Y = scale(ylow, yhigh * (state.ylog ? 1.6 : 1.04), state.ylog, bottom, top);
    const clip = make("clipPath", { id: "inside" }, make("defs", {}, svg));
    make("rect", { x: left, y: top, width: right - left, height: bottom - top }, clip);
    // A label is up to 80 pixels wide: a narrow page has room for few.
    const room = Math.max(1, Math.min(7, Math.floor((right - left) / 80)));
    for (const v of ticks(state.xlog ? xlow : 0, xhigh, state.xlog, room)) {
      make("line", { class: "grid", x1: X(v), x2: X(v), y1: top, y2: bottom }, svg);
      make("text", { x: X(v), y: bottom + 18, "text-anchor": "middle" }, svg, short(v));
    }
    for (const v of ticks(ylow, yhigh, state.ylog, 8)) {
      make("line", { class: "grid", x1: left, x2: right, y1: Y(v), y2: Y(v) }, svg);
      make("text", { x: left - 8, y: Y(v) + 4, "text-anchor": "end" }, svg, short(v));
    }
    make("rect", { class: "frame", x: left, y: top, width: right - left, height: bottom - top }, svg);
    make("text", { class: "name", x: (left + right) / 2, y: height - 10, "text-anchor": "middle" }, svg, data.axes[state.x]);
    make("text", { class: "name", transform: `translate(16 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, data.error);
    const inside = make("g", { "clip-path": "url(#inside)" }, svg);
    if (state.ylog) make("line", { class: "target", x1: left, x2: right, y1: Y(data.target), y2: Y(data.target) }, inside);
    const point = (x, y) => `${X(Math.max(x, state.xlog ? xlow : 0)).toFixed(1)},${Y(Math.max(y, state.ylog ? ylow * 0.1 : 0)).toFixed(1)}`;
    for (const { method, number, curve } of curves) {
      const from = state.xlog ? curve.x.findIndex(v => v > 0) : 0, xs = curve.x.slice(from);
      if (method.seeds > 1) {
        const upper = xs.map((x, k) => point(x, curve.high[k + from])), lower = xs.map((x, k) => point(x, curve.low[k + from])).reverse();
        make("polygon", { points: upper.concat(lower).join(" "), fill: method.color, opacity: 0.16 }, inside);
      }
      if (state.seeds) for (const run of curve.runs) {
        const kept = run.x.map((x, k) => [x, run.y[k]]).filter(pair => !state.xlog || pair[0] > 0);
        make("polyline", { points: kept.map(pair => point(...pair)).join(" "), fill: "none", stroke: method.color, "stroke-width": 0.8, opacity: 0.6 }, inside);
      }
      make("polyline", { class: "curve", "data-method": number, points: xs.map((x, k) => point(x, curve.median[k + from])).join(" "), fill: "none",
        stroke: method.color, "stroke-width": 2.2, "stroke-dasharray": method.dash, "stroke-linejoin": "round" }, inside);
    }
    view = { X, Y, left, right, top, bottom, curves, width,
      line: make("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" }, svg), dots: make("g", {}, svg) };
    finish();
  }

  function at(curve, x) {
    if (x > curve.x[curve.x.length - 1]) return null;
    let low = 0, high = curve.x.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (curve.x[middle] <= x) low = middle; else high = middle; }
    const share = (x - curve.x[low]) / (curve.x[high] - curve.x[low] || 1), log = Math.log10;
    return 10 ** (log(curve.median[low]) * (1 - share) + log(curve.median[high]) * share);
  }

  function hover(event) {
    if (!view) return;
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * view.width / box.width;
    if (px < view.left || px > view.right) { leave(); return; }
    const x = view.X.invert(px);
    const rows = view.curves.map(({ method, curve }) => ({ method, y: at(curve, x) })).filter(row => row.y !== null).sort((a, b) => a.y - b.y);
    view.line.setAttribute("x1", px); view.line.setAttribute("x2", px); view.line.setAttribute("visibility", "visible");
    view.dots.replaceChildren();
    const table = document.createElement("table");
    const head = table.insertRow().insertCell(); head.colSpan = 3; head.textContent = `${data.axes[state.x].split(" (")[0]} ${short(Number(x.toPrecision(3)))}`;
    for (const { method, y } of rows) {
      const py = view.Y(y);
      if (py >= view.top && py <= view.bottom) make("circle", { cx: px, cy: py, r: 3.5, fill: method.color }, view.dots);
      const row = table.insertRow(), mark = row.insertCell();
      mark.textContent = "●"; mark.style.color = method.color;
      row.insertCell().textContent = method.label; row.insertCell().textContent = short(Number(y.toPrecision(2)));
    }
    tip.replaceChildren(table); tip.style.display = "block";
    const place = px * box.width / view.width, wide = tip.offsetWidth;
    tip.style.left = (place + 16 + wide < box.width ? place + 16 : Math.max(4, place - 16 - wide)) + "px";
    tip.style.top = "22px";
  }
  function leave() {
    tip.style.display = "none";
    if (view) { view.line.setAttribute("visibility", "hidden"); view.dots.replaceChildren(); }
  }

  function finish() {
    for (const button of document.querySelectorAll("button[data-x]")) button.setAttribute("aria-pressed", String(button.dataset.x === state.x));
    for (const key of ["xlog", "ylog", "seeds"]) document.getElementById(key).checked = state[key];
    for (const box of document.querySelectorAll("input[data-method]")) {
      const off = state.off.has(Number(box.dataset.method));
      box.checked = !off; box.parentElement.classList.toggle("off", off);
      const missing = !data.methods[Number(box.dataset.method)].curves[state.x];
      box.parentElement.classList.toggle("missing", missing);
      box.parentElement.title = missing ? "no curve on this axis: it sends nothing, or has no finished run" : "";
    }
    stage.dataset.ready = state.x;
  }
  function change() { leave(); writeAddress(); draw(); }

  const axes = document.getElementById("axes"), legend = document.getElementById("legend");
  for (const axis in data.axes) {
    const button = document.createElement("button");
    button.type = "button"; button.dataset.x = axis; button.textContent = data.axes[axis].split(" (")[0];
    button.addEventListener("click", () => { state.x = axis; change(); });
    axes.appendChild(button);
  }
  data.methods.forEach((method, number) => {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox"; box.dataset.method = number;
    box.addEventListener("change", () => { box.checked ? state.off.delete(number) : state.off.add(number); change(); });
    const swatch = make("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    make("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: method.color, "stroke-width": 3, "stroke-dasharray": method.dash }, swatch);
    label.append(box, swatch, document.createTextNode(method.label));
    legend.appendChild(label);
  });
  for (const key of ["xlog", "ylog", "seeds"]) document.getElementById(key).addEventListener("change", event => { state[key] = event.target.checked; change(); });
  svg.addEventListener("pointermove", hover);
  svg.addEventListener("pointerdown", hover);
  svg.addEventListener("pointerleave", leave);
  window.addEventListener("hashchange", () => { readAddress(); draw(); });
  new ResizeObserver(draw).observe(stage);
  readAddress();
  draw();
})();
