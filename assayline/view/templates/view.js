// Keys, the clipboard and progress: everything else works without a script.
(() => {
  const isWriting = (one) => one.matches("input:not([type=checkbox]), textarea, select");

  function step(by) {
    const rows = [...document.querySelectorAll(".row .open")];
    if (!rows.length) return false;
    const place = rows.findIndex((one) => one.closest(".row").contains(document.activeElement));
    rows[Math.min(Math.max(place + by, 0), rows.length - 1)].focus();
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") document.activeElement.blur();
    if (isWriting(event.target) || (event.key === "Enter" && event.target !== document.body)) return;
    const targets = document.querySelectorAll(`[data-key="${CSS.escape(event.key)}"]`);
    const box = document.activeElement.closest(".row")?.querySelector("[type=checkbox]");
    if (targets.length) targets.forEach((one) => (isWriting(one) ? one.focus() : one.click()));
    else if (event.key === "x" && box) box.click();
    else if (!((event.key === "j" && step(1)) || (event.key === "k" && step(-1)))) return;
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    const { toggle, copy } = event.target.closest("button")?.dataset ?? {};
    if (toggle) document.getElementById(toggle).toggleAttribute("hidden");
    if (copy) {
      navigator.clipboard.writeText(document.getElementById(copy).textContent);
      event.target.textContent = "Copied";
    }
  });

  for (const filters of document.querySelectorAll(".filters")) {
    filters.addEventListener("change", (event) => event.target.matches("select") && filters.requestSubmit());
  }

  // Progress of running runs. A run that has ended has new figures, and so has its page.
  const shown = [...document.querySelectorAll("[data-live]")];
  async function poll() {
    const running = await (await fetch("/live")).json();
    for (const one of shown) {
      const run = running[one.dataset.live];
      if (!run) return location.reload();
      const bar = one.querySelector("progress");
      one.querySelector("span").textContent = run.answered;
      if (run.expected_requests) Object.assign(bar, { max: run.expected_requests, value: run.answered });
    }
    setTimeout(poll, 2000);
  }
  if (shown.length) poll();
})();
