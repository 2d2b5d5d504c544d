// Two comforts; every page works without them.
// 1. Parts marked data-live are loaded again every two seconds while the page is looked at.
// 2. The key / goes to the page's search field.
"use strict";

const PAUSE_MS = 2000;
const parts = () => [...document.querySelectorAll("[data-live]")];

async function renew() {
  try {
    if (document.visibilityState !== "visible") return;
    const answer = await fetch(location.href, { headers: { "x-live": "1" } });
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts()) {
      const fresh = page.getElementById(part.id);
      // A link that somebody is on with the keyboard, and text that he marks, stay.
      const selection = getSelection();
      const busy = part.contains(document.activeElement) ||
        (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
      if (fresh && !busy && fresh.innerHTML !== part.innerHTML) {
        part.replaceChildren(...document.adoptNode(fresh).childNodes);
      }
    }
    document.documentElement.dataset.renewed =
      String(Number(document.documentElement.dataset.renewed || 0) + 1);
  } catch {
    // The console is away; the next try may reach it.
  } finally {
    setTimeout(renew, PAUSE_MS);
  }
}

// The answer to a form, or an explanation that took seconds to make, is not asked for again.
if (parts().length && !location.search.includes("explain") && !location.search.includes("stacks")) {
  setTimeout(renew, PAUSE_MS);
}

addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target instanceof HTMLElement && target.closest("input, textarea, select")) return;
  const field = document.querySelector("[data-search]");
  if (field instanceof HTMLElement) {
    event.preventDefault();
    field.focus();
  }
});
