"use strict";
// Replaces the part of the page that shows a run in progress by a newer one, twice a second at most.
(function () {
  const part = document.getElementById("live");
  if (!part) { return; }
  async function renew() {
    try {
      const answer = await fetch(part.dataset.from, { cache: "no-store" });
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const now = fresh.getElementById("live");
        if (now) { part.replaceChildren(...now.childNodes); }
        if (!now || now.dataset.state !== "RUNNING") { location.reload(); return; }
      }
    } catch (error) { /* the server was ended: what is shown stays */ }
    setTimeout(renew, 1000);
  }
  setTimeout(renew, 1000);
})();
