"use strict";
// Asks every second whether there is news. A part of the page whose version has changed is put in
// place of the old one; what somebody is filling in stays. One question without an answer is not the
// end.
let missed = 0;
const ask = async () => {
  try {
    const state = await fetch("/state", {cache: "no-store"});
    if (state.status === 403) return;
    const now = await state.text();
    if (state.ok && now !== document.body.dataset.state) {
      const answer = await fetch("/", {cache: "no-store"});
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("main [data-version]")) {
        const fresh = page.getElementById(part.id);
        if (fresh && fresh.dataset.version !== part.dataset.version) part.replaceWith(fresh);
      }
      document.querySelector("header").replaceWith(page.querySelector("header"));
      document.body.dataset.state = page.body.dataset.state;
    }
    missed = 0;
  } catch {
    missed += 1;
  }
  if (missed < 5) setTimeout(ask, 1000);
  else document.querySelector(".kicker").textContent = "fedmend console has ended";
};
setTimeout(ask, 1000);
