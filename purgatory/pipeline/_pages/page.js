// The button for light and dark, and the figures of a plot for a pointer, a touch and the arrow keys.
document.querySelector("button").onclick = () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme:dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
};
for (const svg of document.querySelectorAll("figure svg")) {
  const output = svg.parentNode.querySelector("output");
  const marks = [...svg.querySelectorAll("title")].map((title) => title.parentNode);
  if (!marks.length) continue;
  let at = -1;
  const go = (to) => {
    marks[at]?.classList.remove("on");
    at = to;
    marks[at]?.classList.add("on");
    output.textContent = at < 0 ? "" : marks[at].querySelector("title").textContent.split("\n").join("   ");
  };
  svg.tabIndex = 0;
  svg.onkeydown = (event) => {
    const last = marks.length - 1, ten = Math.ceil(marks.length / 10);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + ten, PageUp: at - ten, Home: 0, End: last};
    if (event.key === "Escape") go(-1);
    else if (event.key in to) go(Math.max(0, Math.min(last, to[event.key])));
    else return;
    event.preventDefault();
  };
  svg.onpointerdown = (event) => go(marks.indexOf(event.target.closest("rect,circle,line")));
  svg.onblur = () => go(-1);
}
