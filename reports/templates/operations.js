// The table of operations: decoded from the page, searched and shown a page of rows at a time.
{
  const holder = document.getElementById("operations-data");
  if (holder) startOperations(JSON.parse(holder.textContent));

  function startOperations(packed) {
    const PAGE_ROWS = 50;
    const columns = packed.columns;
    const rows = packed.rows;
    for (const name of ["op", "call"]) {
      for (let n = 1; n < rows; n++) columns[name][n] += columns[name][n - 1];
    }
    const byId = (id) => document.getElementById(id);
    const [search, order, found] = [byId("search"), byId("order"), byId("found")];
    const [table, scroll] = [byId("operations-table"), byId("operations-scroll")];
    const text = (name, n) => {
      const code = columns[name][n];
      return code < 0 ? "" : packed.texts[name][code];
    };
    const plain = (value) => (value === null ? "" : String(value));
    const took = (n) => (columns.took[n] < 0 ? null : columns.took[n] / 1000);
    const why = (n) => packed.why.filter((_, bit) => columns.why[n] & (1 << bit)).join(", ");

    // What a field holds, as text; numbers to compare stand beside it.
    const fields = {
      t: (n) => (columns.call[n] / 1e6).toFixed(3),
      took: (n) => (took(n) === null ? "" : took(n).toFixed(2)),
      f: (n) => text("f", n),
      process: (n) => plain(columns.process[n]),
      key: (n) => text("key", n),
      value: (n) => plain(columns.input[n] === null ? columns.output[n] : columns.input[n]),
      input: (n) => plain(columns.input[n]),
      output: (n) => plain(columns.output[n]),
      offset: (n) => plain(columns.offset[n]),
      outcome: (n) => text("outcome", n),
      node: (n) => text("node", n),
      error: (n) => text("error", n),
      extra: (n) => text("extra", n),
      op: (n) => plain(columns.op[n]),
      why,
    };
    const numbers = {
      t: (n) => columns.call[n] / 1e6,
      took,
      process: (n) => columns.process[n],
      value: (n) => (columns.input[n] === null ? columns.output[n] : columns.input[n]),
      input: (n) => columns.input[n],
      output: (n) => columns.output[n],
      offset: (n) => columns.offset[n],
      op: (n) => columns.op[n],
    };
    const partly = new Set(["key", "error", "extra", "why"]);
    const everywhere = ["f", "key", "value", "offset", "outcome", "node", "error", "extra", "op", "why"];
    const shown = [
      ["op", "op", "n"], ["t", "called (s)", "n"], ["took", "took (ms)", "n"],
      ["process", "client", "n"], ["f", "operation", ""], ["key", "key", ""],
      ["value", "value", "n"], ["offset", "offset", "n"], ["outcome", "outcome", ""],
      ["node", "node", ""], ["error", "error", "cell"], ["extra", "besides", "cell"],
      ["why", "why it is here", "cell"],
    ].filter(([name]) => name !== "extra" || packed.texts.extra.length)
      .filter(([name]) => name !== "why" || columns.why.some((bits) => bits));

    // ---- the search ----------------------------------------------------------------------
    const compare = {
      ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
    };
    function term(words) {
      const isNot = words.length > 1 && words.startsWith("-");
      const body = isNot ? words.slice(1) : words;
      const parts = /^([a-z]+)(:|>=|<=|>|<)(.*)$/s.exec(body);
      let test;
      if (parts && fields[parts[1]]) {
        const [, name, sign, raw] = parts;
        const wanted = raw.replaceAll('"', "").toLowerCase();
        if (sign === ":") {
          test = partly.has(name)
            ? (n) => fields[name](n).toLowerCase().includes(wanted)
            : (n) => fields[name](n).toLowerCase() === wanted ||
              (numbers[name] !== undefined && wanted !== "" && numbers[name](n) === Number(wanted));
        } else {
          const limit = Number(wanted);
          if (numbers[name] === undefined || wanted === "" || Number.isNaN(limit)) {
            throw new Error(`${body}: ${name} is compared with a number`);
          }
          test = (n) => numbers[name](n) !== null && compare[sign](Number(numbers[name](n)), limit);
        }
      } else if (parts && parts[2] === ":" && !parts[3].startsWith("//")) {
        throw new Error(`there is no field ${parts[1]}`);
      } else {
        const wanted = body.replaceAll('"', "").toLowerCase();
        test = (n) => everywhere.some((name) => fields[name](n).toLowerCase().includes(wanted));
      }
      return isNot ? (n) => !test(n) : test;
    }
    let hits = [];
    let first = 0;
    let current = 0;
    function find() {
      let said = "";
      hits = [];
      try {
        const tests = (search.value.match(/(?:[^\s"]|"[^"]*"?)+/g) || []).map(term);
        for (let n = 0; n < rows; n++) if (tests.every((test) => test(n))) hits.push(n);
        said = `${hits.length.toLocaleString("en")} of ${rows.toLocaleString("en")} operations`;
      } catch (error) {
        said = error.message;
      }
      if (order.value === "took") {
        hits.sort((a, b) => columns.took[b] - columns.took[a] || a - b);
      }
      first = current = 0;
      show(said);
    }

    // ---- what is shown -------------------------------------------------------------------
    const head = document.createElement("tr");
    for (const [, title, kind] of shown) {
      const cell = document.createElement("th");
      cell.textContent = title;
      cell.scope = "col";
      if (kind === "n") cell.className = "n";
      head.append(cell);
    }
    table.tHead.append(head);
    function show(said, takesFocus) {
      const body = document.createElement("tbody");
      const last = Math.min(first + PAGE_ROWS, hits.length);
      for (let place = first; place < last; place++) {
        const row = document.createElement("tr");
        row.tabIndex = place === current ? 0 : -1;
        row.dataset.place = place;
        row.setAttribute("aria-rowindex", place + 2);
        if (columns.why[hits[place]] & 1) row.className = "marked";
        for (const [name, , kind] of shown) {
          const cell = document.createElement("td");
          cell.textContent = fields[name](hits[place]);
          if (kind) cell.className = kind;
          row.append(cell);
        }
        body.append(row);
      }
      table.tBodies[0].replaceWith(body);
      table.setAttribute("aria-rowcount", hits.length + 1);
      const range = hits.length ? `; rows ${first + 1} to ${last} are shown` : "";
      if (said !== undefined) show.said = said;
      found.textContent = `${show.said}${range}`;
      byId("previous").disabled = first === 0;
      byId("next").disabled = last >= hits.length;
      if (takesFocus) focusRow();
    }
    const focusRow = () => {
      const row = table.tBodies[0].querySelector(`tr[data-place="${current}"]`);
      if (row) row.focus();
    };
    function goTo(place) {
      if (!hits.length) return;
      current = Math.min(Math.max(place, 0), hits.length - 1);
      const page = Math.floor(current / PAGE_ROWS) * PAGE_ROWS;
      if (page !== first) {
        first = page;
        show(undefined, true);
        return;
      }
      for (const row of table.tBodies[0].rows) row.tabIndex = Number(row.dataset.place) === current ? 0 : -1;
      focusRow();
    }
    const turn = (pages) => {
      first = Math.min(Math.max(first + pages * PAGE_ROWS, 0), Math.max(hits.length - 1, 0));
      current = first = Math.floor(first / PAGE_ROWS) * PAGE_ROWS;
      show();
    };
    const keys = {
      ArrowDown: () => goTo(current + 1),
      ArrowUp: () => goTo(current - 1),
      PageDown: () => goTo(current + PAGE_ROWS),
      PageUp: () => goTo(current - PAGE_ROWS),
      Home: () => goTo(0),
      End: () => goTo(hits.length - 1),
      Escape: () => search.focus(),
    };
    scroll.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || !keys[event.key]) return;
      const isInside = event.target.closest("tr") !== null;
      event.preventDefault();
      if (isInside || event.key === "Escape") keys[event.key]();
      else goTo(current);
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "Enter") return;
      event.preventDefault();
      goTo(current);
    });
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.closest("input, select, textarea") !== null;
      if (event.key !== "/" || isTyping || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      search.focus();
      search.select();
    });
    let later = 0;
    search.addEventListener("input", () => {
      clearTimeout(later);
      later = setTimeout(find, 120);
    });
    order.addEventListener("change", find);
    byId("previous").addEventListener("click", () => turn(-1));
    byId("next").addEventListener("click", () => turn(1));
    document.querySelector(".search").hidden = false;

    // Other pages and this one point to operations by "#op=17" or "#search=key:q1".
    function follow() {
      const asked = /^#(op|search)=(.+)$/.exec(location.hash);
      if (!asked) return false;
      let words = asked[2];
      try { words = decodeURIComponent(words); } catch (broken) { /* as it stands */ }
      search.value = asked[1] === "op" ? `op:${words}` : words;
      find();
      byId("operations").scrollIntoView();
      return true;
    }
    addEventListener("hashchange", follow);
    if (!follow()) find();
  }
}
