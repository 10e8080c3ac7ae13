"use strict";
// Filters the memories of an exported page. Without it, the page shows all of them.

const MAX_DELAY_MS = 150;
const byId = (id) => document.getElementById(id);
const cards = [...document.querySelectorAll("#memories > article")];
let texts = null;
let timer = 0;

function readTexts() {
  texts ??= cards.map((card) => card.textContent.toLowerCase());
}

function showMatches() {
  readTexts();
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const type = byId("type").value, outcome = byId("outcome").value;
  let count = 0;
  cards.forEach((card, at) => {
    const isMatch = (!type || card.dataset.type === type) && (!outcome || card.dataset.outcome === outcome)
      && words.every((word) => texts[at].includes(word));
    card.hidden = !isMatch;
    count += isMatch;
  });
  byId("count").textContent = `${count.toLocaleString("en")} of ${cards.length.toLocaleString("en")} shown`;
}

function showTarget() {
  // A link may lead to a memory that the filter hides.
  const target = byId(decodeURIComponent(location.hash.slice(1)));
  if (target && target.hidden) {
    for (const name of ["filter", "type", "outcome"]) byId(name).value = "";
    showMatches();
    target.scrollIntoView();
  }
}

byId("bar").hidden = false;
byId("filter").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(showMatches, MAX_DELAY_MS);
});
byId("type").addEventListener("change", showMatches);
byId("outcome").addEventListener("change", showMatches);
addEventListener("hashchange", showTarget);
(window.requestIdleCallback ?? setTimeout)(readTexts);
