// Draw the charts, and redraw them when the colour scheme changes. A page that is mailed has their library compressed.
(async () => {
  async function unpackLibrary(packed) {
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
  }

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
      const description = (plot.dataset.description ??= plot.ariaLabel);
      window
        .vegaEmbed(plot, spec, { actions: false, ast: true, renderer: "svg", config })
        .then(() => Object.assign(plot, { role: "img", ariaLabel: description, ariaRoleDescription: null })) // not Vega's
        .catch((error) => {
          plot.textContent = "Failed to draw this chart: " + error.message;
        });
    }
  }

  const library = document.getElementById("library");
  if (library) await unpackLibrary(library.textContent);
  if (!window.vegaEmbed) {
    const missing = "The charts need a file in the folder cache next to runs. `assayline report --out` writes one page.";
    for (const plot of document.querySelectorAll(".plot")) plot.textContent = missing;
    return;
  }
  drawAll();
  dark.addEventListener("change", drawAll);
})();
