// The dashboard's figures and its chart of output tokens per second: the last ten minutes, then each second's point.
(() => {
  "use strict";
  const WINDOW_S = 600;
  const GAP_S = 5; // no point for longer than this: the line is broken, not drawn across
  const box = document.getElementById("load-chart");
  const times = [];
  const rates = [];
  let plot = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A custom property holds light-dark(); a probe element resolves it to the colour in use.
  function resolved(name) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    box.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  }

  function draw() {
    plot?.destroy();
    const accent = resolved("--cast");
    const line = resolved("--line");
    const dim = resolved("--dim");
    const font = `12px ${colour("--sans")}`;
    const axis = { stroke: dim, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    plot = new uPlot(
      {
        width: box.clientWidth,
        height: box.clientHeight,
        cursor: { y: false, points: { size: 7 } },
        legend: { show: false },
        scales: {
          x: { time: true, range: () => [Date.now() / 1000 - WINDOW_S, Date.now() / 1000] },
          y: { range: (_, low, high) => [0, Math.max(10, high * 1.15)] },
        },
        axes: [
          { ...axis, size: 28, gap: 8, grid: { show: false }, values: (_, ticks) => ticks.map(clock) },
          { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) },
        ],
        series: [{}, { stroke: accent, width: 1.75, fill: accent.replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)"), points: { show: false } }],
      },
      [times, rates],
      box,
    );
  }

  function clock(seconds) {
    return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  }

  function add([time, rate]) {
    if (times.length && time <= times.at(-1)) return;
    if (times.length && time - times.at(-1) > GAP_S) {
      times.push(times.at(-1) + 1);
      rates.push(null);
    }
    times.push(time);
    rates.push(rate);
    while (times.length && times[0] < time - WINDOW_S) {
      times.shift();
      rates.shift();
    }
  }

  function figures([, rate, running, waiting, cache]) {
    const texts = [null, rate >= 10 || rate % 1 === 0 ? Math.round(rate).toLocaleString("en") : rate.toFixed(1)];
    texts.push(running.toLocaleString("en"), waiting.toLocaleString("en"), `${Math.round(cache * 100)} %`);
    for (const node of document.querySelectorAll("[data-load]")) {
      const text = texts[node.dataset.load];
      node.textContent = text;
      const unit = node.parentElement.querySelector("[data-unit]");
      if (unit) unit.textContent = text === "1" ? unit.dataset.unit : unit.dataset.units;
    }
  }

  async function refill() {
    const answer = await fetch("/dashboard/load").catch(() => null);
    if (!answer?.ok) return;
    times.length = rates.length = 0;
    for (const point of await answer.json()) add(point);
    plot.setData([times, rates]);
  }

  ingot.live.on("load", (data) => {
    const point = JSON.parse(data);
    figures(point);
    add(point);
    plot?.setData([times, rates]);
  });
  document.addEventListener("ingot:connection", (event) => event.detail.lost || refill());
  document.addEventListener("ingot:theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => plot?.setSize({ width: box.clientWidth, height: box.clientHeight })).observe(box);
  draw();
  refill();
})();
