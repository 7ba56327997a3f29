// A headless browser with WebGPU on the processor.
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";

// Where setup puts npm's packages.
const { chromium } = createRequire(new URL("../../target/node/", import.meta.url))("playwright-core");

/// Starts the browser that MARQUETRY_BROWSER names, or the system's Chromium.
export function launch() {
  const name = process.env.MARQUETRY_BROWSER || "chromium";
  const path = execFileSync("sh", ["-c", 'command -v "$1"', "sh", name], { encoding: "utf8" }).trim();
  return chromium.launch({
    executablePath: path,
    headless: true,
    // A container has no user namespaces for the sandbox.
    args: ["--no-sandbox", "--enable-unsafe-webgpu", "--enable-features=Vulkan,WebGPU"],
  });
}
