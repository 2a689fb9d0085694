// Moves through the slides of a deck: one at a time, scaled to the window. No library.
// Keys: arrows, space, Page Up and Down, Home, End; f full screen, n a window with the notes.

const slides = [...document.querySelectorAll("section")];
const place = document.getElementById("place");
const began = Date.now();
let current = 0;
let notes = null;

function show(number) {
  current = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, i) => slide.classList.toggle("here", i === current));
  document.body.classList.toggle("dark", slides[current].classList.contains("dark"));
  place.textContent = `${current + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${current + 1}`);
  showNotes();
}

function fit() {
  const scale = Math.min(innerWidth / 1280, innerHeight / 720);
  for (const layer of document.querySelectorAll("main, footer")) {
    layer.style.transform = `scale(${scale}) translate(-50%, -50%)`;
  }
}

const title = (slide) => slide?.querySelector("h1").textContent ?? "the end";
const minutes = (slide) => Number(slide.dataset.minutes || 0);

function showNotes() {
  if (!notes || notes.closed) return;
  const slide = slides[current];
  const planned = slides.slice(0, current).reduce((sum, each) => sum + minutes(each), 0);
  notes.document.body.innerHTML = `
    <h1></h1><div id="notes"></div><p>Next: <b></b></p>
    <p>${minutes(slide)} min for this slide, which begins at minute ${planned}.
    Now: minute <span id="clock">${Math.floor((Date.now() - began) / 60000)}</span>.</p>`;
  notes.document.querySelector("h1").textContent = title(slide);
  notes.document.querySelector("b").textContent = title(slides[current + 1]);
  notes.document.getElementById("notes").innerHTML = slide.querySelector(".notes")?.innerHTML ?? "";
}

function openNotes() {
  notes = window.open("", "notes", "width=760,height=560");
  if (!notes) return;
  notes.document.title = "Speaker notes";
  notes.document.body.style.cssText = "font: 22px/1.5 sans-serif; margin: 32px; color: #111827";
  notes.onkeydown = move;
  showNotes();
}

setInterval(() => {
  const clock = notes && !notes.closed && notes.document.getElementById("clock");
  if (clock) clock.textContent = Math.floor((Date.now() - began) / 60000);
}, 5000);

function move(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const control = event.target.closest?.("input, select"); // of an explorer: keys are its own
  if (control && event.key === "Escape") control.blur();
  if (control) return;
  const forward = ["ArrowRight", "ArrowDown", "PageDown", " "];
  const back = ["ArrowLeft", "ArrowUp", "PageUp"];
  if (forward.includes(event.key)) show(current + 1);
  else if (back.includes(event.key)) show(current - 1);
  else if (event.key === "Home") show(0);
  else if (event.key === "End") show(slides.length - 1);
  else if (event.key === "f") document.documentElement.requestFullscreen();
  else if (event.key === "n") openNotes();
  else return;
  event.preventDefault();
}

addEventListener("keydown", move);
addEventListener("resize", fit);
// The slide that the address names by its number or its heading's id; the first for any other anchor.
function asked() {
  const anchor = decodeURIComponent(location.hash.slice(1));
  const named = slides.findIndex((slide) => slide.id === anchor);
  return named >= 0 ? named : (parseInt(anchor, 10) || 1) - 1;
}

addEventListener("hashchange", () => show(asked()));
fit();
show(asked());
