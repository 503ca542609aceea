for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const said = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch (refused) {
      // No clipboard for pages from a file in some browsers: select it, so that Ctrl+C does it.
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = said; }, 2500);
  });
}
// What is folded away would be missing on paper.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});

// ---- the plots: each is drawn when it comes near, or when there is nothing else to do; one time axis
const timeBar = document.querySelector(".axis");
if (timeBar && window.Bokeh) startPlots();

function startPlots() {
  const wholeEnd = Number(timeBar.dataset.end);
  const told = document.getElementById("shown-time");
  const shown = { start: 0, end: wholeEnd };
  const axes = [];
  let isMoving = false;

  // Let all plots, and those that are drawn later, show this stretch of time.
  function showTime(start, end) {
    const length = Math.min(Math.max(end - start, 0.001), wholeEnd);
    shown.start = Math.min(Math.max(start, 0), wholeEnd - length);
    shown.end = shown.start + length;
    isMoving = true;
    for (const axis of axes) axis.setv({ start: shown.start, end: shown.end });
    isMoving = false;
    told.textContent = `${shown.start.toFixed(2)} s to ${shown.end.toFixed(2)} s`;
  }
  function join(axis) {
    axis.setv({ start: shown.start, end: shown.end });
    axes.push(axis);
    const follow = () => { if (!isMoving) showTime(axis.start, axis.end); };
    for (const edge of ["start", "end"]) axis.properties[edge].change.connect(follow);
  }

  // One after the other, in the order in which they were requested.
  let drawing = Promise.resolve();
  const asked = new Set();
  function draw(figure) {
    if (asked.has(figure)) return;
    asked.add(figure);
    drawing = drawing.then(async () => {
      const item = JSON.parse(figure.querySelector("script").textContent);
      await Bokeh.embed.embed_item(item, figure.querySelector(".plots").id);
      join(Bokeh.documents[Bokeh.documents.length - 1].get_model_by_name("time"));
    });
  }
  const figures = [...document.querySelectorAll("figure.plot")];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "300px" });
  for (const figure of figures) seen.observe(figure);
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 200));
  const drawNext = () => {
    const next = figures.find((figure) => !asked.has(figure));
    if (!next) return;
    draw(next);
    drawing.then(() => idle(drawNext));
  };
  addEventListener("load", () => idle(drawNext));
  addEventListener("beforeprint", () => figures.forEach(draw));

  const moves = {
    earlier: (length) => showTime(shown.start - length / 2, shown.end - length / 2),
    later: (length) => showTime(shown.start + length / 2, shown.end + length / 2),
    in: (length) => showTime(shown.start + length / 4, shown.end - length / 4),
    out: (length) => showTime(shown.start - length / 2, shown.end + length / 2),
    all: () => showTime(0, wholeEnd),
  };
  for (const button of document.querySelectorAll("button[data-axis]")) {
    button.addEventListener("click", () => moves[button.dataset.axis](shown.end - shown.start));
  }
  for (const button of document.querySelectorAll("button[data-from]")) {
    button.hidden = false;
    button.parentNode.querySelector(".plain").hidden = true;
    button.addEventListener("click", () => {
      const [start, stop] = [button.dataset.from / 1e9, button.dataset.to / 1e9];
      const around = Math.max(stop - start, 0.5);
      showTime(start - around, stop + around);
      document.getElementById("time").scrollIntoView();
    });
  }
  timeBar.hidden = false;
  showTime(0, wholeEnd);
}

// A fault that was clicked on in the plots: its row of the table, said at once.
document.addEventListener("fault-chosen", (event) => {
  const row = document.getElementById(`fault-${event.detail}`);
  const told = document.getElementById("chosen-fault");
  if (!row || !told) return;
  const names = [...row.closest("table").querySelectorAll("th")].map((cell) => cell.textContent);
  const parts = [...row.cells].slice(1).map((cell, n) => `${names[n + 1]}: ${cell.textContent.trim()}`);
  told.textContent = `Fault ${event.detail}. ${parts.join("; ")}. `;
  const link = document.createElement("a");
  link.href = `#${row.id}`;
  link.textContent = "its row";
  told.append(link);
  told.hidden = false;
});
