// Draw the charts, and redraw them when the colour scheme changes.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function makeConfig() {
    const style = getComputedStyle(document.documentElement);
    const theme = document.getElementById("theme").textContent;
    const coloured = theme.replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    return { ...JSON.parse(coloured), font: getComputedStyle(document.body).fontFamily };
  }

  function drawAll() {
    const config = makeConfig();
    for (const plot of document.querySelectorAll(".plot")) {
      const spec = JSON.parse(document.getElementById(plot.dataset.chart).textContent);
      window.vegaEmbed(plot, spec, { actions: false, ast: true, renderer: "svg", config }).catch((error) => {
        plot.textContent = "Failed to draw this chart: " + error.message;
      });
    }
  }

  drawAll();
  dark.addEventListener("change", drawAll);
})();
