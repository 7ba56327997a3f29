// What both pages share: progress, errors, and starting again.

const element = (id) => document.getElementById(id);

/// Shows what is being done. `share` is a number from 0 to 1, or nothing.
export function show(text, share) {
  element("status").textContent = text;
  const bar = element("progress");
  bar.hidden = share === undefined;
  if (share !== undefined) bar.value = share;
}

/// A callback that shows counts as they grow, such as "compiling 3 of 20".
export function counting(text, unit = "") {
  return (done, all) => show(`${text} ${done} of ${all}${unit}`, all ? done / all : 0);
}

/// The same for bytes, in megabytes.
export function downloading(text) {
  const mega = (bytes) => (bytes / 1e6).toFixed(1);
  return (done, all) => show(`${text}: ${mega(done)} of ${mega(all)} MB`, all ? done / all : 0);
}

/// Runs `work`, and shows its error with a button that starts the page's work again.
export async function guarded(work, again) {
  element("error").hidden = true;
  try {
    return await work();
  } catch (error) {
    fail(error, () => guarded(again, again));
    return undefined;
  }
}

function fail(error, again) {
  show("Stopped.");
  element("message").textContent = String(error?.message ?? error);
  element("error").hidden = false;
  element("again").onclick = again;
}

// A program that has panicked, for want of memory for example, settles no promise, and cannot go on.
for (const event of ["error", "unhandledrejection"]) {
  addEventListener(event, ({ error, message, reason }) => fail(error ?? reason ?? message, () => location.reload()));
}

/// Returns whether the browser has WebGPU; if not, says so.
export function hasGpu() {
  if (navigator.gpu) return true;
  show("This browser has no WebGPU.");
  element("message").textContent = isSecureContext
    ? "Use a current Chrome, Edge or Safari, or Firefox on Windows or macOS."
    : "WebGPU needs a page from https or from this machine.";
  element("error").hidden = false;
  element("again").hidden = true;
  return false;
}
