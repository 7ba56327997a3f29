// The suite in a worker: posts what is wrong with calls that would block, or nothing.
import init, { blocking_calls, open } from "./marquetry_web_tests.js";

await init();
await open();
postMessage(await blocking_calls());
