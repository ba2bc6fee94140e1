addEventListener("DOMContentLoaded", function () {
  // print what is folded, too
  var folded = [];
  addEventListener("beforeprint", function () {
    folded = Array.from(document.querySelectorAll("main details:not([open]):not(.code)"));
    folded.forEach(function (one) { one.open = true; });
  });
  addEventListener("afterprint", function () { folded.forEach(function (one) { one.open = false; }); });
  function save(name, address) {
    var link = document.createElement("a");
    link.download = name;
    link.href = address;
    link.click();
  }
  // figures: the picture as SVG or PNG, its numbers as CSV
  document.querySelectorAll("[data-get]").forEach(function (button) {
    button.addEventListener("click", function () {
      var figure = button.closest("figure"), image = figure.querySelector("img"), kind = button.dataset.get;
      if (kind === "svg") return save(figure.id + ".svg", image.src);
      if (kind === "csv") return save(figure.id + ".csv", "data:text/csv;charset=utf-8," + encodeURIComponent(button.dataset.csv));
      var canvas = document.createElement("canvas"), big = 2;
      canvas.width = big * image.naturalWidth;
      canvas.height = big * image.naturalHeight;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      save(figure.id + ".png", canvas.toDataURL("image/png"));
    });
  });
  // all comparisons: headings sort, the address filters
  var table = document.getElementById("comparisons");
  if (!table) return;
  var body = table.tBodies[0], heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach(function (head, column) {
    if (head.querySelector("svg")) return;
    var button = document.createElement("button");
    button.type = "button";
    button.append.apply(button, Array.from(head.childNodes));
    head.append(button);
    button.addEventListener("click", function () {
      var way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      Array.from(body.rows).sort(function (one, other) {
        var a = one.cells[column], b = other.cells[column];
        if (a.dataset.value) return way * ((parseFloat(a.dataset.value) || 0) - (parseFloat(b.dataset.value) || 0));
        return way * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
      }).forEach(function (row) { body.append(row); });
    });
  });
  function filter() {
    if (location.hash && location.hash.indexOf("=") < 0) return;  // a place on the page
    var wanted = new URLSearchParams(location.hash.slice(1));
    Array.from(body.rows).forEach(function (row) {
      row.hidden = ["factor", "verdict"].some(function (key) { return wanted.get(key) && row.dataset[key] !== wanted.get(key); });
    });
    document.querySelectorAll(".filters a").forEach(function (link) {
      if (link.getAttribute("href") === (location.hash || "#")) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  }
  addEventListener("hashchange", filter);
  filter();
});
