// The page for a chat.
import { RemoteFile } from "../files.js";
import { counting, downloading, guarded, hasGpu, show } from "../page.js";
import init, { Chat, open, stop } from "./marquetry_web_chat.js";

const MOST = 256;
const element = (id) => document.getElementById(id);
const options = new URLSearchParams(location.search);
const address = options.get("model") ?? "../models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
let chat;

async function start() {
  element("send").disabled = true;
  element("conversation").replaceChildren();
  await init();
  chat?.free();
  chat = undefined;
  show("Asking for a device…");
  element("device").textContent = await open();
  const file = new RemoteFile(address, downloading("Loading the model"));
  chat = await Chat.load(file, counting("Compiling kernels:"));
  ready();
}

function ready() {
  show("Ready. Write a message.");
  element("send").hidden = element("send").disabled = false;
  element("stop").hidden = true;
}

/// Adds a message to the conversation, and returns its element.
function said(role, text) {
  const message = document.createElement("div");
  message.className = `said ${role}`;
  message.textContent = text;
  element("conversation").append(message);
  return message;
}

async function send() {
  const prompt = element("prompt").value.trim();
  if (!prompt || !chat) return;
  element("prompt").value = "";
  said("user", prompt);
  const reply = said("assistant", "");
  element("send").hidden = true;
  element("stop").hidden = false;
  show("Reading the message…");
  const began = performance.now();
  let pieces = 0;
  const temperature = Number(options.get("temperature") ?? 0);
  const most = Number(options.get("tokens") ?? MOST);
  const times = JSON.parse(
    await chat.reply(prompt, temperature, most, (piece) => {
      reply.textContent += piece;
      pieces += 1;
      show(`Writing… ${pieces} pieces in ${((performance.now() - began) / 1000).toFixed(0)} s`);
    }),
  );
  const rate = (number) => number.toFixed(1);
  element("speed").textContent =
    `prompt: ${times.prompt_tokens} tokens, ${rate(times.prompt_tokens_per_second)} a second; ` +
    `reply: ${times.tokens} tokens, ${rate(times.tokens_per_second)} a second`;
  ready();
}

element("form").onsubmit = (event) => {
  event.preventDefault();
  if (!element("send").disabled && !element("send").hidden) guarded(send, start);
};
element("stop").onclick = () => stop();

if (hasGpu()) await guarded(start, start);
