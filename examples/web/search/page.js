// The page that searches a text by meaning.
import { RemoteFile } from "../files.js";
import { counting, downloading, guarded, hasGpu, show } from "../page.js";
import init, { Search, open } from "./marquetry_web_search.js";

const TOP = 5;
const element = (id) => document.getElementById(id);
const folder = new URLSearchParams(location.search).get("model") ?? "../models/minilm/";
const text = element("text");
let search;

/// Allows what the page can do now.
function allow(reading, searching) {
  element("read").disabled = !reading;
  element("search").disabled = !searching;
}

async function start() {
  allow(false, false);
  await init();
  search?.free();
  search = undefined;
  show("Asking for a device…");
  element("device").textContent = await open();
  const tokenizer = await new RemoteFile(`${folder}tokenizer.json`).whole();
  const weights = new RemoteFile(`${folder}model.safetensors`, downloading("Loading the model"));
  const loaded = await Search.load(weights, tokenizer);
  await loaded.warm_up(counting("Compiling kernels:"));
  search = loaded;
  show("Ready. Give it a text.");
  allow(true, false);
  if (text.value.trim()) await read();
}

async function read() {
  if (!text.value.trim()) return show("Give it a text.");
  allow(false, false);
  element("results").replaceChildren();
  const began = performance.now();
  const lines = await search.read(text.value, counting("Reading", " lines"));
  const seconds = (performance.now() - began) / 1000;
  show(`${lines} lines read. Ask something.`);
  element("speed").textContent = `${(lines / seconds).toFixed(1)} sentences a second`;
  allow(true, true);
}

async function answer() {
  const query = element("query").value.trim();
  if (!query) return;
  // The program does one thing at a time.
  allow(false, false);
  const found = await search.search(query, TOP);
  allow(true, true);
  element("results").replaceChildren(
    ...found.map(([similarity, number, line]) => {
      const item = document.createElement("li");
      const score = document.createElement("span");
      score.className = "score";
      score.textContent = similarity.toFixed(3);
      item.append(score, `${line} `);
      item.dataset.line = number;
      return item;
    }),
  );
}

element("read").onclick = () => guarded(read, start);
element("form").onsubmit = (event) => {
  event.preventDefault();
  if (!element("search").disabled) guarded(answer, start);
};
text.ondragover = (event) => {
  event.preventDefault();
  text.classList.add("dropping");
};
text.ondragleave = () => text.classList.remove("dropping");
text.ondrop = async (event) => {
  event.preventDefault();
  text.classList.remove("dropping");
  const file = event.dataTransfer.files[0];
  try {
    text.value = file ? await file.text() : event.dataTransfer.getData("text");
  } catch {
    show("This file cannot be read.");
  }
};

if (hasGpu()) await guarded(start, start);
