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
  var fold = document.querySelector(".bl-fold");
  if (fold) fold.addEventListener("click", function (event) {
    if (event.target.closest("a")) fold.open = false;
  });
});
