// Runs the conformance suite in a browser: node run.mjs FOLDER [--cases N] [--seed TEXT] [--seconds N] [FILTER ...]
//
// FOLDER holds what scripts/web.sh has built. Of the cases whose names contain a filter, N run, chosen by the seed. The
// exit status is 0 if none of them failed, and the console stayed silent.
import { createHash } from "node:crypto";
import { parseArgs } from "node:util";
import { serve } from "../../scripts/serve.mjs";
import { launch } from "./browser.mjs";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    cases: { type: "string", default: "1000" },
    seed: { type: "string", default: "" },
    seconds: { type: "string", default: "600" },
  },
});
const [folder, ...filters] = positionals;

const server = await serve(folder);
const said = [];
let browser;

/// A case that takes longer hangs.
const LONGEST = 120_000;

/// Calls a function in a page. A panic of the program settles no promise, but is an error of the page.
async function ask(page, call, argument) {
  let timer, fail;
  const fails = new Promise((_, refuse) => {
    fail = refuse;
    timer = setTimeout(() => fail(new Error(`nothing came within ${LONGEST / 1000} s`)), LONGEST);
    page.on("pageerror", fail);
  });
  return await Promise.race([page.evaluate(call, argument), fails]).finally(() => {
    clearTimeout(timer);
    page.off("pageerror", fail);
  });
}

/// Starts a browser and opens the page, with a device.
async function open() {
  await browser?.close();
  browser = await launch();
  const page = await browser.newPage();
  page.on("console", (message) => {
    if (["warning", "error"].includes(message.type())) said.push(message.text());
  });
  page.on("pageerror", (error) => said.push(`uncaught: ${error}`));
  await page.goto(`${server.address}/`);
  const description = await page.evaluate(async () => {
    const suite = await import("./marquetry_web_tests.js");
    await suite.default();
    window.suite = suite;
    return await suite.open();
  });
  return { page, description };
}

let { page, description } = await open();
console.log(`${await browser.version()}: ${description}`);

const blocking = await ask(page, () => window.suite.blocking_calls());
console.log(`calls that would block ... ${blocking || "ok"}`);
const inWorker = await ask(
  page,
  () =>
    new Promise((done) => {
      const worker = new Worker("./worker.js", { type: "module" });
      worker.onmessage = ({ data }) => done(data);
      worker.onerror = ({ message }) => done(`the worker failed: ${message}`);
    }),
);
console.log(`the same in a worker ... ${inWorker || "ok"}`);

const names = await page.evaluate(() => window.suite.names());
const order = (name) => createHash("sha256").update(options.seed + name).digest("hex");
const chosen = names
  .map((name, number) => ({ name, number, order: order(name) }))
  .filter(({ name }) => filters.length === 0 || filters.some((filter) => name.includes(filter)))
  .sort((a, b) => (a.order < b.order ? -1 : 1));

const counts = { passed: 0, failed: 0, reads: 0, lacks: 0 };
const lacking = new Map();
const wanted = Number(options.cases);
const start = Date.now();
const seconds = () => (Date.now() - start) / 1000;
for (const { name, number } of chosen) {
  if (counts.passed + counts.failed >= wanted || seconds() > Number(options.seconds)) break;
  let outcome;
  const began = seconds();
  try {
    outcome = await ask(page, (number) => window.suite.run(number), number);
  } catch (error) {
    outcome = `panicked: ${String(error).slice(0, 500)}`;
  }
  // A panic ends the program, and a browser gives no device after it has lost some.
  if (outcome.startsWith("panicked") || outcome.includes("was lost")) {
    ({ page } = await open());
  }
  if (seconds() - began > 5) console.log(`${name} took ${(seconds() - began).toFixed(0)} s`);
  const [first, ...rest] = outcome.split(" ");
  if (outcome === "passed" || outcome === "reads") {
    counts[outcome] += 1;
  } else if (first === "lacks") {
    counts.lacks += 1;
    lacking.set(rest.join(" "), (lacking.get(rest.join(" ")) ?? 0) + 1);
  } else {
    counts.failed += 1;
    console.log(`${name} ... FAILED\n  ${outcome.replaceAll("\n", "\n  ")}`);
  }
  const done = counts.passed + counts.failed;
  if (done % 250 === 0 && outcome === "passed") console.log(`${done} of ${wanted} after ${seconds().toFixed(0)} s`);
}
const kernels = await page.evaluate(() => window.suite.kernels());
const took = seconds();
await browser.close();
server.close();

console.log(`\n${counts.passed} passed, ${counts.failed} failed, in ${took.toFixed(0)} s; ${kernels} kernels`);
console.log(`left out: ${counts.reads} read elements by themselves`);
for (const [feature, count] of lacking) console.log(`left out: ${count} need ${feature}, which the device lacks`);
for (const line of said.slice(0, 20)) console.log(`console: ${line}`);
const enough = filters.length > 0 || counts.passed >= wanted;
if (!enough) console.log(`fewer than ${wanted} cases passed`);
process.exit(counts.failed === 0 && said.length === 0 && !blocking && !inWorker && enough ? 0 : 1);
