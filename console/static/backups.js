// The upload of a backup: refuses what has no room before it is sent, and says how far it is. Without this script the
// form sends itself.
(() => {
  "use strict";
  const form = document.querySelector(".backup-upload");
  if (!form) return;
  const note = form.querySelector(".backup-sent");
  const bar = note.querySelector("progress");
  const words = note.querySelector("span");
  const button = form.querySelector("button");
  const mib = (bytes) => `${(bytes / 2 ** 20).toLocaleString("en", { maximumFractionDigits: 1 })} MiB`;

  function say(text, share = null) {
    note.hidden = false;
    words.textContent = text;
    bar.hidden = share === null;
    bar.value = share ?? 0;
  }

  form.addEventListener("submit", (event) => {
    const file = form.elements.file.files[0];
    if (!file) return;
    event.preventDefault();
    const most = Math.min(Number(form.dataset.room), Number(form.dataset.limit));
    if (file.size > most) return say(`${file.name} is ${mib(file.size)}, but there is only room for ${mib(most)}.`);
    send(file);
  });

  function send(file) {
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.setRequestHeader("Accept", "application/json");
    request.setRequestHeader("HX-Request", "true"); // answered with where to go, which this script follows itself
    request.upload.onprogress = (event) => say(`${mib(event.loaded)} of ${mib(event.total)}`, event.loaded / event.total);
    request.onload = () => {
      const next = request.getResponseHeader("HX-Redirect");
      if (next) return location.assign(next);
      const page = new DOMParser().parseFromString(request.responseText, "text/html");
      end(page.querySelector(".refusal")?.textContent.trim() || `The console answered with status ${request.status}.`);
    };
    request.onerror = () => end("The console closed the connection. Check its disk space, then upload the file again.");
    button.disabled = true;
    say("Starting", 0);
    request.send(new FormData(form));
  }

  function end(text) {
    button.disabled = false;
    say(text);
  }
})();
