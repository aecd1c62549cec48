// Draws the charts, again whenever light turns to dark or back.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue("--" + name).trim();
  }

  function makeConfig() {
    const colour = readColours();
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: "transparent",
      font,
      view: { stroke: null },
      axis: {
        labelColor: colour("quiet"), titleColor: colour("quiet"), titleFontWeight: "normal", labelFontSize: 11,
        titleFontSize: 11, gridColor: colour("line"), domainColor: colour("line"), tickColor: colour("line"),
      },
      axisX: { grid: false },
      range: { category: [colour("accent"), colour("second"), colour("good"), colour("third"), colour("quiet")] },
      legend: { labelColor: colour("quiet"), labelFontSize: 11, symbolStrokeWidth: 0, symbolType: "circle" },
      style: {
        quantity: { color: colour("accent") },
        percentile: { color: colour("ink"), strokeWidth: 1, strokeDash: [3, 3] },
        "percentile-name": { color: colour("ink"), fontSize: 11 },
        window: { color: colour("ink"), strokeWidth: 1.5, strokeDash: [5, 3] },
        event: { color: colour("bad"), strokeWidth: 1.5 },
        "event-name": { color: colour("bad"), fontSize: 11 },
        interval: { color: colour("accent"), strokeWidth: 3 },
        estimate: { color: colour("ink"), size: 55, filled: true, opacity: 1 },
        repeat: { color: colour("accent"), size: 40, filled: true, opacity: 0.6 },
        median: { color: colour("ink"), thickness: 2, bandSize: 18 },
        band: { color: colour("quiet"), opacity: 0.16 },
        night: { color: colour("accent"), size: 34, filled: true, opacity: 1 },
        "night-uncounted": { color: colour("quiet"), size: 34, filled: false, opacity: 0.7 },
        "night-interval": { color: colour("accent"), strokeWidth: 1.5, opacity: 0.45 },
        level: { color: colour("second"), strokeWidth: 2.5 },
        flag: { color: colour("bad"), size: 150, filled: false, strokeWidth: 1.5, opacity: 1 },
      },
    };
  }

  function drawAll() {
    const config = makeConfig();
    for (const plot of document.querySelectorAll(".plot")) {
      const spec = JSON.parse(document.getElementById(plot.dataset.chart).textContent);
      window.vegaEmbed(plot, spec, { actions: false, ast: true, renderer: "svg", config }).catch((error) => {
        plot.textContent = "This chart cannot be drawn: " + error.message;
      });
    }
  }

  drawAll();
  dark.addEventListener("change", drawAll);
})();
