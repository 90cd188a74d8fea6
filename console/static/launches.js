// Keeps the list of launches current: `recent` comes whenever a launch began, moved or ended, and with each new connection.
(() => {
  "use strict";
  let first = true; // what comes when the page opens, the page has
  ingot.live.on("recent", () => {
    if (!first) htmx.ajax("GET", location.href, { target: "#launches", select: "#launches", swap: "outerHTML" }).catch(() => {});
    first = false;
  });
})();
