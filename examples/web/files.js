// Files of models: fetched in pieces, and kept in the browser's cache storage, so that the next visit needs no network.

const CACHE = "marquetry-models";
const PIECE = 4 << 20;

/// A file at an address. `progress` is told how many bytes have come, and the file's length.
export class RemoteFile {
  constructor(address, progress = () => {}) {
    this.address = new URL(address, location.href).href;
    this.progress = progress;
    this.loaded = new Set();
    this.bytes = 0;
    // The piece that was read last: tensors that touch share one.
    this.last = null;
  }

  get name() {
    return decodeURIComponent(this.address.split("/").pop());
  }

  async length() {
    this.cache ??= await openCache();
    const about = `${this.address}?about`;
    try {
      const answer = await fetch(this.address, { method: "HEAD" });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const length = Number(answer.headers.get("content-length"));
      const version = answer.headers.get("etag") ?? answer.headers.get("last-modified") ?? "";
      this.about = { length, version };
      await this.cache?.put(about, Response.json(this.about));
    } catch (error) {
      // Without a network, what has been kept is good.
      const kept = await this.cache?.match(about);
      if (!kept) throw new Error(`${this.name} cannot be fetched: ${error.message}`);
      this.about = await kept.json();
    }
    return this.about.length;
  }

  /// Returns the bytes from `start` to `end`.
  async read(start, end) {
    const bytes = new Uint8Array(end - start);
    for (let number = Math.floor(start / PIECE); number * PIECE < end; number += 1) {
      const first = number * PIECE;
      const piece = await this.piece(number);
      const from = Math.max(start, first);
      bytes.set(piece.subarray(from - first, end - first), from - start);
    }
    return bytes;
  }

  /// Returns the whole file.
  async whole() {
    return await this.read(0, await this.length());
  }

  async piece(number) {
    if (this.last?.number === number) return this.last.bytes;
    const { length, version } = this.about;
    const first = number * PIECE;
    const past = Math.min(first + PIECE, length);
    const key = `${this.address}?piece=${number}&version=${encodeURIComponent(version)}`;
    let answer = await this.cache?.match(key);
    if (!answer) {
      const fetched = await fetch(this.address, { headers: { range: `bytes=${first}-${past - 1}` } });
      if (fetched.status !== 206) throw new Error(`the server answers ${fetched.status} to a range of ${this.name}`);
      const bytes = await fetched.arrayBuffer();
      if (bytes.byteLength !== past - first) throw new Error(`a piece of ${this.name} is cut off`);
      answer = new Response(bytes);
      // A browser that is short of room may refuse to keep it.
      await this.cache?.put(key, answer.clone()).catch(() => {});
    }
    this.last = { number, bytes: new Uint8Array(await answer.arrayBuffer()) };
    if (!this.loaded.has(number)) {
      this.loaded.add(number);
      this.bytes += past - first;
      this.progress(this.bytes, length);
    }
    return this.last.bytes;
  }
}

/// Cache storage is not there in private windows of some browsers.
async function openCache() {
  try {
    return await caches.open(CACHE);
  } catch {
    return null;
  }
}
