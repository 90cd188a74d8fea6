// The upload of a backup: refuses what has no room before it is sent, and says how far it is. Without this script the
// form sends itself.
(() => {
  "use strict";
  const form = document.querySelector(".backup-upload");
  if (!form) return;
  const note = form.querySelector(".backup-sent");
  const refused = form.querySelector(".backup-refused");
  const bar = note.querySelector("progress");
  const words = note.querySelector("span");
  const button = form.querySelector("button");
  const mib = (bytes) => `${(bytes / 2 ** 20).toLocaleString("en", { maximumFractionDigits: 1 })} MiB`;

  function say(text, share) {
    note.hidden = false;
    refused.hidden = true;
    words.textContent = text;
    bar.value = share;
  }

  // `remedy` is text, or the nodes of one.
  function refuse(message, ...remedy) {
    button.disabled = false;
    note.hidden = true;
    refused.hidden = false;
    refused.querySelector("strong").textContent = message;
    refused.querySelector("p").replaceChildren(...remedy);
  }

  form.addEventListener("submit", (event) => {
    const file = form.elements.file.files[0];
    if (!file) return;
    event.preventDefault();
    const most = Math.min(Number(form.dataset.room), Number(form.dataset.limit));
    if (file.size > most) {
      return refuse(`${file.name} is ${mib(file.size)}, but there is only room for ${mib(most)}.`);
    }
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
      const part = (name) => page.querySelector(`.refusal [data-part="${name}"]`);
      const message = part("message")?.textContent || `The console answered with status ${request.status}.`;
      refuse(message, ...(part("remedy")?.childNodes ?? []));
    };
    request.onerror = () => {
      refuse("The console closed the connection.", "Check its disk space, then upload the file again.");
    };
    button.disabled = true;
    say("Starting", 0);
    request.send(new FormData(form));
  }
})();
