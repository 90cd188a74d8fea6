// Keeps the list of launches current: `recent` comes whenever a launch began, moved or ended.
(() => {
  "use strict";
  let first = true; // what comes when the page opens, the page has
  ingot.live.on("recent", () => {
    if (!first) htmx.ajax("GET", location.href, { target: "#launches", select: "#launches", swap: "outerHTML" });
    first = false;
  });
})();
