// A headless browser with WebGPU on the processor, and a server for its pages.
import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";

// Where setup puts npm's packages.
const { chromium } = createRequire(new URL("../../target/node/", import.meta.url))("playwright-core");

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };
const EMPTY = "<!doctype html><html lang=en><meta charset=utf-8><title>marquetry</title></html>";

/// Serves folders on 127.0.0.1, in ranges if asked: a request gets the first file that one of them has.
export async function serve(...folders) {
  const server = createServer((request, response) => {
    const name = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
    const file = folders.map((folder) => join(folder, name)).find((path) => existsSync(path) && statSync(path).isFile())
      ?? folders.map((folder) => join(folder, name, "index.html")).find((path) => existsSync(path));
    if (!file) {
      response.writeHead(name === "/" || name === "/favicon.ico" ? 200 : 404, { "content-type": "text/html" });
      response.end(name === "/" ? EMPTY : "");
      return;
    }
    const { size } = statSync(file);
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const [first, last] = range ? [Number(range[1]), range[2] ? Number(range[2]) : size - 1] : [0, size - 1];
    response.writeHead(range ? 206 : 200, {
      "content-type": TYPES[extname(file)] ?? "application/octet-stream",
      "content-length": request.method === "HEAD" ? size : Math.max(0, last - first + 1),
      "accept-ranges": "bytes",
      ...(range ? { "content-range": `bytes ${first}-${last}/${size}` } : {}),
    });
    if (request.method === "HEAD" || size === 0) response.end();
    else createReadStream(file, { start: first, end: last }).pipe(response);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return { address: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/// Starts the browser that MARQUETRY_BROWSER names, or the system's Chromium.
export function launch() {
  return chromium.launch({
    executablePath: process.env.MARQUETRY_BROWSER ?? "/usr/bin/chromium",
    headless: true,
    // A container has no user namespaces for the sandbox.
    args: ["--no-sandbox", "--enable-unsafe-webgpu", "--enable-features=Vulkan,WebGPU"],
  });
}
