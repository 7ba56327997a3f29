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
    const key = `${this.address}?about`;
    let answer;
    try {
      // A range, because the length of a whole answer may be that of compressed bytes.
      answer = await fetch(this.address, { headers: { range: "bytes=0-0" }, cache: "no-store" });
    } catch (error) {
      // Without a network, what has been kept is good.
      const kept = await this.cache?.match(key);
      if (!kept) throw new Error(`${this.name} cannot be fetched: ${error.message}`);
      this.about = await kept.json();
      return this.about.length;
    }
    if (!answer.ok) throw new Error(`${this.name} cannot be fetched: the server answers ${answer.status}`);
    this.about = this.told(answer);
    await answer.arrayBuffer();
    await this.keep(key, Response.json(this.about));
    return this.about.length;
  }

  /// What an answer to a range tells about the whole file.
  told(answer) {
    const length = Number(answer.headers.get("content-range")?.split("/")[1]);
    if (answer.status !== 206 || !length) throw new Error(`the server of ${this.name} does not send ranges`);
    const version = answer.headers.get("etag") ?? answer.headers.get("last-modified") ?? "";
    return { length, version };
  }

  /// Keeps an answer for the next visit. A browser that is short of room may refuse.
  async keep(key, answer) {
    await this.cache?.put(key, answer).catch(() => {});
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
    const key = `${this.address}?piece=${number}&length=${length}&version=${encodeURIComponent(version)}`;
    // Without a version, nobody could tell that the file has changed.
    const kept = version && (await this.cache?.match(key));
    let bytes = kept && (await kept.arrayBuffer());
    if (bytes?.byteLength !== past - first) {
      const answer = await fetch(this.address, {
        headers: { range: `bytes=${first}-${past - 1}` },
        cache: "no-store",
      });
      const told = this.told(answer);
      if (told.length !== length || told.version !== version) throw new Error(`${this.name} has changed meanwhile`);
      bytes = await answer.arrayBuffer();
      if (bytes.byteLength !== past - first) throw new Error(`a piece of ${this.name} is cut off`);
      if (version) await this.keep(key, new Response(bytes));
    }
    this.last = { number, bytes: new Uint8Array(bytes) };
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
