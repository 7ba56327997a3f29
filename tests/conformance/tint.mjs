// Hands WGSL files of a folder to Tint, Chromium's compiler, through Dawn. Prints `failed FILE: MESSAGE` for each
// that is refused, and `compiled N` and `left out N` at the end: browsers have no 64-bit types.
//
//   node tint.mjs PATH/TO/node_modules/webgpu/index.js FOLDER FILE...

import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [library, folder, ...files] = process.argv.slice(2);
const { create, globals } = await import(pathToFileURL(library));
Object.assign(globalThis, globals);

// Dawn crashes where the object that adapters come from is collected: a property of the global object never is.
globalThis.gpu = create([]);
const adapter = await globalThis.gpu.requestAdapter();
if (!adapter) throw new Error('Dawn finds no adapter');
const optional = ['shader-f16', 'subgroups'].filter((feature) => adapter.features.has(feature));
// Large workgroups and more buffers are chosen where a device has them.
const limits = [
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupSizeX',
  'maxComputeWorkgroupStorageSize',
  'maxStorageBuffersPerShaderStage',
];
const requiredLimits = Object.fromEntries(limits.map((limit) => [limit, adapter.limits[limit]]));
const device = await adapter.requestDevice({ requiredFeatures: optional, requiredLimits });

let compiled = 0;
let leftOut = 0;
for (const file of files) {
  const code = fs.readFileSync(path.join(folder, file), 'utf8');
  if (/\b[if]64\b/.test(code)) {
    leftOut += 1;
    continue;
  }
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter(({ type }) => type === 'error').map(({ message }) => message);
  if (errors.length === 0) device.createComputePipeline({ layout: 'auto', compute: { module } });
  const refusal = await device.popErrorScope();
  if (errors.length === 0 && refusal) errors.push(refusal.message);
  if (errors.length === 0) compiled += 1;
  else console.log(`failed ${file}: ${errors.join('; ').replaceAll('\n', ' ')}`);
}
console.log(`compiled ${compiled}`);
console.log(`left out ${leftOut}`);
process.exit(0);
