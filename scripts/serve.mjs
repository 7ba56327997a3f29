// Serves a folder on 127.0.0.1, in ranges if asked: node scripts/serve.mjs FOLDER [PORT] prints the address.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";

// Where setup puts npm's packages.
const sirv = createRequire(new URL("../target/node/", import.meta.url))("sirv");

/// Starts a server; port 0 is any that is free. Returns its address, and what ends it.
export async function serve(folder, port = 0) {
  const server = createServer(sirv(resolve(folder), { dev: true, etag: true }));
  await new Promise((ready, refused) => server.once("error", refused).listen(port, "127.0.0.1", ready));
  return { address: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder, port = "8080"] = process.argv.slice(2);
  const { address } = await serve(folder, Number(port));
  console.log(`${address}/ (Ctrl-C ends it)`);
}
