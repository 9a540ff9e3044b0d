// Updates pages live. Everything else works without this file.
"use strict";

(() => {
  // Makes `old` like `fresh`, and touches nothing that is the same already: focus and selection stay where they are.
  function sync(old, fresh) {
    if (old.nodeName !== fresh.nodeName || old.dataset?.key !== fresh.dataset?.key) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) return;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    syncChildren(old, fresh);
  }

  function syncChildren(old, fresh) {
    const wanted = [...fresh.childNodes];
    wanted.forEach((child, index) => {
      const present = old.childNodes[index];
      if (present) sync(present, child);
      else old.append(child);
    });
    while (old.childNodes.length > wanted.length) old.lastChild.remove();
  }

  const live = document.querySelector("[data-events]");
  const status = document.getElementById("live-status");
  if (live && status && "EventSource" in window) {
    const say = (text) => {
      if (status.textContent !== text) status.textContent = text;
    };
    const source = new EventSource(live.dataset.events);
    source.addEventListener("state", (event) => {
      const html = JSON.parse(event.data);
      syncChildren(live, new DOMParser().parseFromString(html, "text/html").body);
      say("Live: updated every second.");
    });
    source.addEventListener("trouble", (event) => {
      say(`Not live: ${JSON.parse(event.data)}.`);
    });
    source.addEventListener("error", () => {
      const closed = source.readyState === EventSource.CLOSED;
      say(closed ? "Not live: reload the page to see the current state." : "Not live: reconnecting.");
    });
    window.addEventListener("pagehide", () => source.close());
    window.addEventListener("pageshow", (event) => {
      if (event.persisted) location.reload();
    });
  }

  // Selects all items of a page at once.
  const all = document.getElementById("select-all");
  if (all) {
    const boxes = [...document.querySelectorAll("input[name=item]")];
    all.closest("label").hidden = false;
    all.addEventListener("change", () => {
      for (const box of boxes) box.checked = all.checked;
    });
  }
})();
