"use strict";
// Filtering, folding and focus only: without it the page shows everything all the same.
for (const box of document.querySelectorAll(".find")) {
  box.hidden = false;
  const list = document.getElementById(box.dataset.list);
  const items = box.dataset.items ? [...list.querySelectorAll(box.dataset.items)] : [...list.children];
  const words = items.map((item) => item.querySelector("summary").textContent.toLowerCase());
  const shown = box.querySelector("output");
  const show = (text) => {
    let count = 0;
    items.forEach((item, k) => {
      item.hidden = !words[k].includes(text);
      count += !item.hidden;
    });
    shown.textContent = text ? `${count} of ${items.length}` : "";
  };
  box.querySelector("input")?.addEventListener("input", (event) => show(event.target.value.trim().toLowerCase()));
  box.querySelector("button").addEventListener("click", (event) => {
    const open = event.target.getAttribute("aria-pressed") !== "true";
    for (const item of items) item.open = open && !item.hidden;
    event.target.setAttribute("aria-pressed", String(open));
    const text = event.target.textContent;
    event.target.textContent = event.target.dataset.other;
    event.target.dataset.other = text;
  });
}
// What is too wide for the screen can be scrolled by keyboard, and only that takes a stop of the tab key. Looked at
// when it comes near the view: measuring everything would lay out a thousand kernels that nobody sees.
for (const box of document.querySelectorAll(".scroll")) {
  const hint = Object.assign(document.createElement("p"), { className: "hint", textContent: "scrolls sideways →" });
  hint.setAttribute("aria-hidden", "true");
  box.before(hint);
}
const seen = new IntersectionObserver((entries) => {
  const boxes = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
  const wide = boxes.map((box) => box.scrollWidth > box.clientWidth); // all reading before all writing: one layout
  boxes.forEach((box, k) => {
    box.tabIndex = wide[k] ? 0 : -1;
    box.previousElementSibling.classList.toggle("wide", wide[k]);
  });
}, { rootMargin: "20000px 0px" });
const watch = () => {
  seen.disconnect();
  for (const box of document.querySelectorAll(".scroll")) seen.observe(box);
};
addEventListener("resize", watch);
watch();
// A link to something folded unfolds it.
const reveal = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", reveal);
reveal();
// One GPU at a time where times are predicted.
const gpu = document.getElementById("gpu");
if (gpu) {
  gpu.closest("p").hidden = false;
  gpu.addEventListener("change", () => {
    for (const part of document.querySelectorAll(".gpu")) part.hidden = part.dataset.gpu !== gpu.value;
    watch();
  });
}
// The index says which section is read: the last one whose title has passed the upper third.
const links = [...document.querySelectorAll("nav a")];
const current = () => {
  const passed = links.filter((a) => document.querySelector(a.hash).getBoundingClientRect().top < innerHeight / 3);
  for (const link of links) link.toggleAttribute("aria-current", link === passed.at(-1));
};
addEventListener("scroll", () => requestAnimationFrame(current), { passive: true });
current();
