// Tests the pages in a browser, from end to end: node pages.mjs FOLDER [--chat] [--screenshots FOLDER]
//
// FOLDER holds what `make pages` has built, with the models. With --chat, the chat is tested too, which takes longer.
import assert from "node:assert/strict";
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { serve } from "../../scripts/serve.mjs";
import { launch } from "./browser.mjs";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { chat: { type: "boolean" }, screenshots: { type: "string" } },
});
const [folder] = positionals;
const data = new URL("../data/", import.meta.url);
const DESKTOP = { width: 1000, height: 900 };
const PHONE = { width: 390, height: 844 };

const server = await serve(folder);
const browser = await launch();
// All pages share the cache storage.
const visitor = await browser.newContext({ viewport: DESKTOP });
let failed = 0;

/// Runs a test on a page of its own. What the console says is an error, unless the test expects it.
async function test(name, path, run, expected = /^$/) {
  const page = await visitor.newPage();
  const said = [];
  page.on("console", (message) => {
    if (["warning", "error"].includes(message.type())) said.push(message.text());
  });
  page.on("pageerror", (error) => said.push(`uncaught: ${error.message}`));
  try {
    await run(page, `${server.address}${path}`);
    const unexpected = said.filter((line) => !expected.test(line));
    assert.deepEqual(unexpected, [], "the console");
    console.log(`${name} ... ok`);
  } catch (error) {
    failed += 1;
    console.log(`${name} ... FAILED\n  ${error.message.replaceAll("\n", "\n  ")}`);
  }
  await page.close();
}

/// Waits until the status matches, and returns the seconds.
async function until(page, status, seconds = 120) {
  const start = Date.now();
  const reached = ([pattern]) => new RegExp(pattern).test(document.getElementById("status").textContent);
  await page.waitForFunction(reached, [`${status.source}|^Stopped`], { timeout: 1000 * seconds, polling: 50 });
  assert.match(await page.textContent("#status"), status, await page.textContent("#message"));
  return (Date.now() - start) / 1000;
}

async function screenshots(page, name) {
  if (!options.screenshots) return;
  for (const [size, viewport] of [["desktop", DESKTOP], ["phone", PHONE]]) {
    await page.setViewportSize(viewport);
    await page.screenshot({ path: join(options.screenshots, `${name}-${size}.png`), fullPage: true });
  }
}

/// The numbers of an entry of a safetensors file.
function numbers(file, name) {
  const bytes = readFileSync(new URL(file, data));
  const start = 8 + Number(bytes.readBigUInt64LE());
  const [first, end] = JSON.parse(bytes.subarray(8, start))[name].data_offsets;
  return Array.from({ length: (end - first) / 4 }, (_, place) => bytes.readFloatLE(start + first + 4 * place));
}

await test("the search page finds the lines that `make demo` finds", "/search/", async (page, address) => {
  await page.goto(address);
  const loading = await until(page, /^Ready/);
  await page.fill("#text", readFileSync(new URL("../../examples/data/notes.txt", import.meta.url), "utf8"));
  await page.click("#read");
  const reading = await until(page, /^300 lines read/);
  await page.fill("#query", "how do plants make food from sunlight?");
  await page.click("#search");
  await page.waitForSelector("#results li");
  const lines = await page.$$eval("#results li", (items) => items.map((item) => Number(item.dataset.line)));
  assert.deepEqual(lines, [298, 120, 158, 77, 290]);
  console.log(`  ready after ${loading.toFixed(1)} s, ${(300 / reading).toFixed(1)} sentences/s`);
  await screenshots(page, "search");
});

await test("the second visit needs no network for the weights", "/search/", async (page, address) => {
  const fetched = [];
  page.on("request", (request) => {
    // A byte tells whether a file has changed.
    const { range } = request.headers();
    if (request.url().includes("/models/") && range !== "bytes=0-0") fetched.push(`${request.url()} ${range}`);
  });
  await page.goto(address);
  console.log(`  ready after ${(await until(page, /^Ready/)).toFixed(1)} s`);
  assert.deepEqual(fetched, []);
});

await test("a dropped file is the text", "/search/", async (page, address) => {
  await page.goto(address);
  await until(page, /^Ready/);
  await page.evaluate(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["one line\n\nanother line"], "text.txt"));
    document.getElementById("text").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, cancelable: true }));
  });
  await page.waitForFunction(() => document.getElementById("text").value.includes("another"));
  await page.click("#read");
  await until(page, /^2 lines read/);
});

await test("embeddings agree with the reference", "/search/", async (page, address) => {
  await page.goto(address);
  await until(page, /^Ready/);
  const sentences = JSON.parse(readFileSync(new URL("minilm.json", data))).map(({ sentence }) => sentence);
  const found = await page.evaluate(async (sentences) => {
    const { RemoteFile } = await import("../files.js");
    const { Search } = await import("./marquetry_web_search.js");
    const tokenizer = await new RemoteFile("../models/minilm/tokenizer.json").whole();
    const search = await Search.load(new RemoteFile("../models/minilm/model.safetensors"), tokenizer);
    const embeddings = [];
    for (const sentence of sentences) embeddings.push([...(await search.embed(sentence))]);
    return embeddings.flat();
  }, sentences);
  const expected = numbers("minilm.safetensors", "embeddings");
  assert.equal(found.length, expected.length);
  const worst = Math.max(...found.map((number, place) => Math.abs(number - expected[place])));
  console.log(`  largest difference ${worst.toExponential(1)}`);
  // A NaN is not below.
  assert(worst <= 2e-6, `they differ by ${worst}`);
});

await test("a lost device is shown, and a button starts again", "/search/", async (page, address) => {
  await page.addInitScript(() => {
    const request = GPUAdapter.prototype.requestDevice;
    GPUAdapter.prototype.requestDevice = async function (descriptor) {
      window.device = await request.call(this, descriptor);
      return window.device;
    };
  });
  await page.goto(address);
  await until(page, /^Ready/);
  await page.evaluate(() => window.device.destroy());
  await page.fill("#text", "one line");
  await page.click("#read");
  await page.waitForSelector("#error", { state: "visible" });
  assert.match(await page.textContent("#message"), /lost/);
  await page.click("#again");
  // It reads the text that is still there.
  await until(page, /^1 lines read/);
  assert(await page.isHidden("#error"));
});

await test("a browser without WebGPU is told so", "/search/", async (page, address) => {
  await page.addInitScript(() => Object.defineProperty(Navigator.prototype, "gpu", { value: undefined }));
  await page.goto(address);
  await page.waitForSelector("#error", { state: "visible" });
  assert.match(await page.textContent("#status"), /no WebGPU/);
  assert(await page.isDisabled("#read"));
});

await test("a model that is not there is an error", "/search/?model=../models/none/", async (page, address) => {
  await page.goto(address);
  await page.waitForSelector("#error", { state: "visible" });
  assert.match(await page.textContent("#message"), /tokenizer.json cannot be fetched: the server answers 404/);
}, /404/);

await test("the first kernel runs three seconds after the start", "/search/", async (page, address) => {
  await page.goto(`${address}../`);
  const seconds = await page.evaluate(async () => {
    const start = performance.now();
    const search = await import("/search/marquetry_web_search.js");
    await search.default();
    await search.open();
    const sum = await search.first_kernel();
    return sum === 10 ? (performance.now() - start) / 1000 : `the sum is ${sum}`;
  });
  console.log(`  after ${seconds} s`);
  assert(seconds <= 3);
  const size = statSync(join(folder, "search/marquetry_web_search_bg.wasm")).size;
  console.log(`  ${(size / 1e6).toFixed(2)} MB of WebAssembly`);
  assert(size < 2.5e6);
});

if (options.chat) {
  await test("the chat's reply is that of the reference", "/chat/?tokens=16", async (page, address) => {
    const { text } = JSON.parse(readFileSync(new URL("smollm2.json", data))).chat;
    await page.goto(address);
    const loading = await until(page, /^Ready/);
    // All eight tokens lead by a margin above 1.
    await page.fill("#prompt", "What is the capital of Italy? Answer in one sentence.");
    await page.click("#send");
    await until(page, /^Writing/);
    await until(page, /^Ready/);
    assert.equal(`${await page.textContent(".said.assistant")}<|im_end|>`, text);
    console.log(`  ready after ${loading.toFixed(1)} s; ${await page.textContent("#speed")}`);
    await screenshots(page, "chat");
  });

  await test("a reply can be stopped", "/chat/", async (page, address) => {
    await page.goto(address);
    await until(page, /^Ready/);
    await page.fill("#prompt", "Tell me a long story about a village.");
    await page.click("#send");
    await until(page, /^Writing… [3-9]/);
    await page.click("#stop");
    await until(page, /^Ready/);
    assert(Number(/reply: (\d+)/.exec(await page.textContent("#speed"))[1]) < 100);
  });
}

await browser.close();
server.close();
process.exit(failed === 0 ? 0 : 1);
