"use strict";
const body = document.querySelector("tbody"), status = document.querySelector("#status");
const progress = document.querySelector("#progress");
const figure = value => value === null ? "-" : value === "inf" ? "∞" : value.toFixed(3);
const two = number => String(number).padStart(2, "0");
function day(text) {
  const at = new Date(text);
  if (isNaN(at)) return "-";
  const date = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
  return date + " " + [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
}
function cell(row, text, name) {
  const added = row.insertCell();
  added.textContent = text;
  if (name) added.className = name;
  return added;
}
function show(runs) {
  body.replaceChildren();
  progress.hidden = !runs.some(run => run.progress || run.message);
  for (const run of runs) {
    const row = body.insertRow(), first = cell(row, "");
    if (run.report) {
      const link = document.createElement("a");
      link.href = "/report/" + encodeURIComponent(run.name);
      link.textContent = run.name;
      first.append(link);
    } else first.textContent = run.name;
    cell(row, run.title === run.name ? "" : run.title);
    cell(row, day(run.changed), "date");
    cell(row, run.state);
    cell(row, run.progress || run.message).hidden = progress.hidden;
    cell(row, run.unit);
    cell(row, figure(run.claim), "number");
    cell(row, figure(run.bound), "number");
    cell(row, run.verdict, run.verdict === "refuted" ? "marked" : "");
  }
  status.textContent = runs.length ? "" : "No runs here yet.";
}
async function poll() {
  try {
    const answer = await fetch("/api/runs");
    const content = await answer.json();
    if (answer.ok) show(content.runs); else status.textContent = content.error;
  } catch (error) { status.textContent = "coalmine serve does not respond."; }
  setTimeout(poll, 1000);
}
poll();
