// Draws the page's figures in the colours of its style, and again when light and dark change.
"use strict";
(() => {
  const root = document.documentElement;
  const button = document.querySelector("button.theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  const colour = (text) => {
    probe.style.color = text;
    return getComputedStyle(probe).color;
  };
  // A figure names colours as var(--name); Plotly needs their values.
  const coloured = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(coloured);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one)]));
  };

  const plots = [...document.querySelectorAll(".plot")];
  const draw = async () => {
    for (const plot of plots) {
      const { data, layout } = coloured(JSON.parse(plot.nextElementSibling.textContent));
      const config = { displayModeBar: false, responsive: true };
      await Plotly.react(plot, data, layout, config);
    }
  };
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show this page ${isDark() ? "light" : "dark"}`);
  };
  const show = (theme) => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    label();
    return plots.length ? draw() : undefined;
  };

  const start = async () => {
    if (plots.length) {
      const packed = atob(document.getElementById("plotly").textContent);
      const bytes = Uint8Array.from(packed, (one) => one.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      const library = document.createElement("script");
      library.textContent = await new Response(stream).text();
      document.head.append(library);
    }
    await show();
    button.hidden = false;
    button.addEventListener("click", () => show(isDark() ? "light" : "dark"));
    system.addEventListener("change", () => show(root.dataset.theme));
    let before;
    addEventListener("beforeprint", () => { before = root.dataset.theme; show("light"); });
    addEventListener("afterprint", () => show(before));
  };
  start().then(
    () => { root.dataset.drawn = "yes"; },
    (error) => {
      // The tables hold every figure of the charts.
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      root.dataset.drawn = "no";
      throw error;
    },
  );
})();
