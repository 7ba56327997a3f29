// A headless browser with WebGPU on the processor.
import { createRequire } from "node:module";

// Where setup puts npm's packages.
const { chromium } = createRequire(new URL("../../target/node/", import.meta.url))("playwright-core");

/// Starts the browser that MARQUETRY_BROWSER names, or the system's Chromium.
export function launch() {
  return chromium.launch({
    executablePath: process.env.MARQUETRY_BROWSER ?? "/usr/bin/chromium",
    headless: true,
    // A container has no user namespaces for the sandbox.
    args: ["--no-sandbox", "--enable-unsafe-webgpu", "--enable-features=Vulkan,WebGPU"],
  });
}
