// Draws the figures once the text is there, and moves thresholds. Everything shown is data, set as text.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const { theme, specs } = read("figures");
const explorers = read("explorers");
const drawings = new Map();

const options = {
  actions: false,
  ast: true, // expressions are interpreted, not compiled: the page forbids eval
  config: theme,
  defaultStyle: false,
  mode: "vega-lite",
  renderer: "svg",
  tooltip: { disableDefaultStyle: true },
};

function draw(name) {
  if (!drawings.has(name)) {
    const place = document.getElementById(`figure-${name}`);
    const [, spec] = specs[name]; // after its title
    drawings.set(
      name,
      window.vegaEmbed(place, spec, options).then(({ view }) => {
        place.classList.add("drawn");
        place.querySelector("svg").setAttribute("aria-hidden", "true"); // its container carries the description
        if (place.scrollWidth > place.clientWidth) place.tabIndex = 0; // so that keys can scroll it
        return view;
      }),
    );
  }
  return drawings.get(name);
}

async function move(name, place) {
  const { figures, places } = explorers[name];
  for (const figure of figures) {
    const view = await draw(figure);
    await view.data("here", [places[place]]).runAsync();
  }
}

const short = (value) => String(Number(value.toPrecision(4)));
const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)}%`;

function words({ sides, members, nonmembers, places }, place) {
  const { threshold, tp, fp, epsilon } = places[place];
  const estimate = epsilon === null ? "no finite ε" : `ε ≈ ${epsilon.toFixed(2)}`;
  return (
    `Threshold ${short(threshold)} flags ${tp} of ${members} ${sides[0]} (TPR ${percent(tp, members)}) and ` +
    `${fp} of ${nonmembers} ${sides[1]} (FPR ${percent(fp, nonmembers)}). ${estimate} here: an estimate, not a bound.`
  );
}

for (const part of document.querySelectorAll("[data-explorer]")) {
  const name = part.dataset.explorer;
  const slider = part.querySelector("input");
  const output = part.querySelector("output");
  slider.addEventListener("input", () => {
    output.textContent = words(explorers[name], slider.valueAsNumber);
    slider.setAttribute("aria-valuetext", output.textContent);
    move(name, slider.valueAsNumber);
  });
}

const names = Object.keys(specs);
const inClosedFold = (name) => document.getElementById(`figure-${name}`).closest("details:not([open])") !== null;
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target.id.slice(7))),
  { rootMargin: "300px" },
);
for (const name of names) near.observe(document.getElementById(`figure-${name}`));

// Figures further down are drawn in idle time, so that all that is unfolded can be printed. In a closed fold, a figure
// has no width to be drawn in.
const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
async function drawAll() {
  delete document.documentElement.dataset.drawn;
  for (const name of names) {
    if (inClosedFold(name)) continue;
    await draw(name);
    await new Promise((done) => later(done, { timeout: 300 }));
  }
  document.documentElement.dataset.drawn = "all";
}
later(drawAll, { timeout: 1000 });

document.addEventListener("toggle", drawAll, true);

const unfold = document.getElementById("unfold");
unfold.addEventListener("click", () => {
  const folds = [...document.querySelectorAll("details")];
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
  unfold.textContent = open ? "Fold all details" : "Unfold all details";
});
