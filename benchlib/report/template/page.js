// In the head, so that a page never shows the other colours first.
try { document.documentElement.dataset.theme = localStorage.getItem("bl-theme") || ""; } catch (e) { /* private window */ }
addEventListener("DOMContentLoaded", function () {
  var root = document.documentElement, button = document.querySelector(".bl-theme");
  var system = matchMedia("(prefers-color-scheme: dark)");
  function dark() {
    var chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : system.matches;
  }
  function label() {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to " + (dark() ? "light" : "dark") + " colours");
  }
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("bl-theme", root.dataset.theme); } catch (e) { /* private window */ }
    label();
  });
  system.addEventListener("change", label);
  label();
  button.hidden = false;
  var folded = [];
  addEventListener("beforeprint", function () {
    folded = Array.prototype.slice.call(document.querySelectorAll("main details:not([open]):not(.bl-fold)"));
    folded.forEach(function (one) { one.open = true; });
  });
  addEventListener("afterprint", function () { folded.forEach(function (one) { one.open = false; }); });
  // Tables: a button in each heading sorts by it, once more the other way round.
  function number(row, column) {
    var text = row.cells[column].textContent;
    var digits = /[+-]?\d[\d,]*(\.\d+)?/.exec(text.replace(/−/g, "-"));
    var value = digits ? parseFloat(digits[0].replace(/,/g, "")) : NaN;
    return /^[^(]*×/.test(text) ? 100 * (value - 1) : value;
  }
  function sortable(table) {
    var body = table.tBodies[0], heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = document.createElement("button"), numbers = head.classList.contains("bl-number");
      button.type = "button";
      button.className = "bl-sort";
      button.append.apply(button, Array.from(head.childNodes));
      head.append(button);
      button.addEventListener("click", function () {
        var before = head.getAttribute("aria-sort"), way = (before ? before === "descending" : !numbers) ? 1 : -1;
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
        Array.from(body.rows).sort(function (one, other) {
          var words = one.cells[column].textContent;
          if (!numbers) return way * words.localeCompare(other.cells[column].textContent, "en", { numeric: true });
          var a = number(one, column), b = number(other, column);
          return isNaN(a) || isNaN(b) ? isNaN(a) - isNaN(b) : way * (a - b);
        }).forEach(function (row) { body.append(row); });
      });
    });
  }
  document.querySelectorAll(".bl-table:not(.dataframe)").forEach(function (table) {
    if (table.tHead && table.tBodies[0] && table.tBodies[0].rows.length > 2) sortable(table);
  });
  var fold = document.querySelector(".bl-fold");
  if (fold) fold.addEventListener("click", function (event) {
    if (event.target.closest("a")) fold.open = false;
  });
  // A link to what is folded opens it.
  function unfold() {
    var at = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (var part = at; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (at) at.scrollIntoView();
  }
  addEventListener("hashchange", unfold);
  unfold();
});
// Figures: what a mark says to whoever points at it or reaches it, and the picture and its numbers to take along.
addEventListener("DOMContentLoaded", function () {
  var tip = document.createElement("div"), page = location.pathname.replace(/^.*\/|\.html$/g, "");
  tip.className = "bl-tip";
  tip.hidden = true;
  document.body.append(tip);
  function hide() { tip.hidden = true; }
  function show(event) {
    var mark = event.target.closest(".bl-mark");
    if (!mark) return;
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    var box = mark.getBoundingClientRect(), x = event.clientX || box.left + Math.min(box.width / 2, 200);
    var right = document.documentElement.clientWidth - tip.offsetWidth - 8;
    var y = box.top > tip.offsetHeight + 8 ? box.top - tip.offsetHeight - 4 : box.bottom + 4;
    tip.style.left = scrollX + Math.max(8, Math.min(x - tip.offsetWidth / 2, right)) + "px";
    tip.style.top = scrollY + y + "px";
  }
  document.querySelectorAll(".bl-mark > title").forEach(function (title) {
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  });
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("mouseout", hide);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") hide(); });
  document.querySelectorAll(".bl-figure[data-csv]").forEach(function (figure) {
    var svg = figure.querySelector("svg"), title = figure.querySelector(".bl-title").textContent;
    var size = svg.viewBox.baseVal, above = 22, row = document.createElement("p");
    function take(blob, kind) {
      var link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = page + "." + figure.dataset.figure + "." + kind;
      link.click();
      setTimeout(function () { URL.revokeObjectURL(link.href); }, 1e4);
    }
    function part(name, values) {
      var made = document.createElementNS(svg.namespaceURI, name);
      Object.keys(values).forEach(function (key) { made.setAttribute(key, values[key]); });
      return made;
    }
    function picture() { // in the light colours, with its title, on paper
      var copy = svg.cloneNode(true), high = size.height + above;
      copy.setAttribute("viewBox", [0, -above, size.width, high].join(" "));
      copy.setAttribute("width", size.width * 4 / 3);
      copy.setAttribute("height", high * 4 / 3);
      var words = part("text", { x: 4, y: 14 - above, fill: "#1a1a1a", style: "font-size: 10px; font-weight: 600" });
      words.textContent = title;
      if (title.length > 80) { // which not all fonts have room for
        words.setAttribute("textLength", size.width - 8);
        words.setAttribute("lengthAdjust", "spacingAndGlyphs");
      }
      copy.prepend(part("rect", { y: -above, width: size.width, height: high, fill: "#ffffff" }), words);
      return new XMLSerializer().serializeToString(copy).replace(/var\(--bl-\w+, ?(#\w+)\)/g, "$1");
    }
    var kinds = {
      svg: function () { take(new Blob([picture()], { type: "image/svg+xml" }), "svg"); },
      png: function () {
        var image = new Image();
        image.onload = function () {
          var canvas = document.createElement("canvas");
          canvas.width = 2 * image.width;
          canvas.height = 2 * image.height;
          canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
          canvas.toBlob(function (blob) { take(blob, "png"); });
        };
        image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(picture());
      },
      csv: function () { take(new Blob([figure.dataset.csv], { type: "text/csv" }), "csv"); }
    };
    row.className = "bl-take";
    Object.keys(kinds).forEach(function (kind) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = kind.toUpperCase();
      button.setAttribute("aria-label", kind.toUpperCase() + ": " + title);
      button.addEventListener("click", kinds[kind]);
      row.append(button);
    });
    figure.append(row);
  });
});
