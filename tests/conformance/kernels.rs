//! Every kernel of a run, handed to the compilers and validators at hand.

use crate::full_tier;
use crate::ocloc::{self, Report, Source};
use crate::passed::{Identity, Passed};
use crate::report::complain;
use crate::trials::number;
use marquetry::internals::tuning::{self, Block};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

/// Intel's GPUs that take turns in the quick tier: every fourth matrix product is compiled for one of them, and every
/// sixteenth of the other kernels. All GPUs see one kernel of each family, and in the full tier every kernel.
const TURNS: [&str; 2] = ["dg2", "pvc"];

/// Of how many kernels the validators see one in the quick tier, beside one of each family. In the full tier they see
/// every kernel.
const SHARE: u64 = 4;

/// What a tool finds wrong with kernels; an error if it cannot be asked.
type Check<'a> = &'a dyn Fn(&[PathBuf]) -> Result<Vec<String>, String>;

/// Checks the kernels in a folder and prints a line per tool. Returns whether all tools are there and content.
pub fn check(folder: &Path) -> bool {
    let all = kernels(folder);
    let [vulkan, opencl, wgsl] = if full_tier() { all } else { all.map(|kernels| share_of(&kernels)) };
    println!("\n{} kernels as Vulkan SPIR-V, {} as OpenCL SPIR-V, {} as WGSL", vulkan.len(), opencl.len(), wgsl.len());
    let mut pass = true;
    let mut report = |tool: &str, inputs: &[PathBuf], check: Check| {
        let start = Instant::now();
        let passed = Passed::by(tool);
        let inputs = passed.unknown(inputs, identity);
        let failures = check(&inputs);
        if failures.as_ref().is_ok_and(Vec::is_empty) {
            passed.add(inputs.iter().map(identity));
        }
        pass &= print(tool, inputs.len(), failures, start);
    };
    // OpenCL itself knows SPIR-V up to 1.2; subgroups, which Level Zero has, are of a later one.
    let (later, known): (Vec<_>, Vec<_>) = opencl.iter().cloned().partition(|path| spirv_version(path) > [1, 2]);
    for (environment, inputs) in [("vulkan1.2", &vulkan), ("opencl2.2", &known), ("spv1.3", &later)] {
        report(&format!("spirv-val {environment}"), inputs, &|inputs| spirv_val(environment, inputs));
    }
    report("naga", &wgsl, &|inputs| Ok(failures_of_each(inputs, |path| naga(path).map(drop))));
    // What wgpu gives to Direct3D 12 and to Metal. The first has no atomic sums of floats, the second no `f64`.
    let written = if full_tier() { wgsl.clone() } else { families(&wgsl) };
    report("naga HLSL", &without(FLOAT_ATOMICS, &written), &|inputs| Ok(failures_of_each(inputs, hlsl)));
    report("naga MSL", &without("f64", &written), &|inputs| Ok(failures_of_each(inputs, msl)));
    for gpu in ocloc::GPUS {
        let mut inputs = if full_tier() { opencl.clone() } else { turn_of(gpu, &opencl) };
        inputs.retain(|path| {
            let lacks = |has: bool, capability: &str| !has && disassembly(path).contains(capability);
            !lacks(ocloc::has_f64(gpu), "Capability Float64")
                && !lacks(ocloc::has_dot_products(gpu), "Capability DotProduct")
        });
        report(&format!("ocloc {gpu}"), &inputs, &|inputs| {
            ocloc::why_missing().map_or_else(|| Ok(intel(gpu, inputs)), Err)
        });
    }
    // Browsers have no atomic sums of floats.
    match tint_library() {
        Some(library) => {
            report("Tint", &without(FLOAT_ATOMICS, &wgsl), &|inputs| Ok(tint(&library, folder, inputs)));
        }
        None => {
            println!("Tint was not run: it takes node, and the npm package that `make setup` installs where node is")
        }
    }
    pass
}

/// The kernels in a folder: as SPIR-V for Vulkan and for OpenCL, and as WGSL.
pub fn kernels(folder: &Path) -> [Vec<PathBuf>; 3] {
    [".vulkan.spv", ".opencl.spv", ".wgsl"].map(|ending| files(folder, ending))
}

/// What tells a kernel apart: its code, and what else decides how a tool compiles it and how the outcome is judged.
fn identity(path: &PathBuf) -> Identity {
    let mut code = std::fs::read(path).expect("a kernel of the dump");
    if name(path).ends_with(".spv") {
        code.push(has_large_registers(&disassembly(path)).into());
    }
    if is_product(path) {
        code.extend(name(path).into_bytes());
    }
    xxh3_128(&code)
}

/// Major and minor version, from the second word of a module.
fn spirv_version(path: &Path) -> [u8; 2] {
    let bytes = std::fs::read(path).expect("a kernel of the dump");
    [bytes[6], bytes[5]]
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of this run's kernels is there");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    files
}

/// The kernels that validators see in the quick tier.
fn share_of(kernels: &[PathBuf]) -> Vec<PathBuf> {
    let mut share = families(kernels);
    share.extend(kernels.iter().filter(|path| number(&name(path)).is_multiple_of(SHARE)).cloned());
    share.sort();
    share.dedup();
    share
}

/// Those of them that a GPU's compiler sees.
fn turn_of(gpu: &str, kernels: &[PathBuf]) -> Vec<PathBuf> {
    let mut share = families(kernels);
    if let Some(turn) = TURNS.iter().position(|other| *other == gpu) {
        let (products, others): (Vec<_>, Vec<_>) = kernels.iter().cloned().partition(|path| is_product(path));
        share.extend(products.into_iter().skip(turn).step_by(TURNS.len()));
        share.extend(others.into_iter().skip(turn).step_by(4 * TURNS.len()));
        share.sort();
        share.dedup();
    }
    share
}

fn is_product(path: &Path) -> bool {
    name(path).starts_with("matmul")
}

/// The first kernel of each family, which is the first word of its name.
fn families(kernels: &[PathBuf]) -> Vec<PathBuf> {
    let mut kernels = kernels.to_vec();
    kernels.dedup_by_key(|path| name(path).split(['_', '.']).next().map(String::from));
    kernels
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Does something with every item, on all processors.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// Does something with every item, on all processors. Returns what failed.
fn failures<T: Sync>(items: &[T], work: impl Fn(&T) -> Vec<String> + Sync) -> Vec<String> {
    let failures = Mutex::new(Vec::new());
    in_parallel(items, |item| {
        let found = work(item);
        failures.lock().unwrap().extend(found);
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    failures
}

/// Runs a check on every file. Returns what failed.
fn failures_of_each(inputs: &[PathBuf], check: impl Fn(&Path) -> Result<(), String> + Sync) -> Vec<String> {
    let message = |path: &PathBuf| Some(format!("{}: {}", name(path), check(path).err()?));
    failures(inputs, |path| message(path).into_iter().collect())
}

/// Prints what a tool has found, or why it could not be asked. Returns whether all is well.
fn print(tool: &str, count: usize, failures: Result<Vec<String>, String>, start: Instant) -> bool {
    let failures = match failures {
        Ok(failures) => failures,
        Err(message) => {
            complain(format_args!("{tool}: {message}"));
            return false;
        }
    };
    let passed = count - failures.len();
    println!("{tool:<20} {passed:>5}/{count} passed  {:>6.1} s", start.elapsed().as_secs_f64());
    for failure in failures.iter().take(10) {
        complain(format_args!("{tool}: {failure}"));
    }
    if failures.len() > 10 {
        println!("  ... and {} more", failures.len() - 10);
    }
    failures.is_empty()
}

/// Runs the one that `make setup` brings, which is newer than a distribution's; else that of the PATH.
fn spirv_val(environment: &str, inputs: &[PathBuf]) -> Result<Vec<String>, String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/spirv-val");
    let program = if own.exists() { own } else { "spirv-val".into() };
    if let Err(error) = Command::new(&program).arg("--version").output() {
        return Err(format!("{} cannot be run ({error}); run `make setup`", program.display()));
    }
    Ok(failures_of_each(inputs, |path| {
        let run = Command::new(&program).args(["--target-env", environment]).arg(path).output();
        let output = run.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        Err(format!("{}\n    {}", output.status, String::from_utf8_lossy(&text).trim().replace('\n', "\n    ")))
    }))
}

/// Reads a kernel as WGSL.
fn naga(path: &Path) -> Result<(naga::Module, naga::valid::ModuleInfo), String> {
    let source = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    // What browsers insist on and naga does not know yet; line numbers stay.
    let source = source.replace("enable subgroups; diagnostic(off, subgroup_uniformity);", "");
    let module = naga::front::wgsl::parse_str(&source).map_err(|error| error.emit_to_string(&source))?;
    let capabilities = naga::valid::Capabilities::SUBGROUP | naga::valid::Capabilities::SHADER_FLOAT16;
    let capabilities = capabilities | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let capabilities = capabilities | naga::valid::Capabilities::SHADER_INT64 | naga::valid::Capabilities::FLOAT64;
    let capabilities = capabilities | naga::valid::Capabilities::SHADER_FLOAT32_ATOMIC;
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(&source))?;
    Ok((module, info))
}

/// The type of sums of floats in WGSL. It is wgpu's own.
const FLOAT_ATOMICS: &str = "atomic<f32>";

/// The kernels whose WGSL does not name a type.
fn without(ty: &str, kernels: &[PathBuf]) -> Vec<PathBuf> {
    let names = |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|source| source.contains(ty));
    kernels.iter().filter(|path| !names(path)).cloned().collect()
}

/// Writes a kernel as wgpu does for Direct3D 12.
fn hlsl(path: &Path) -> Result<(), String> {
    use naga::back::hlsl::{FragmentEntryPoint, Options, PipelineOptions, ShaderModel, Writer};
    let (module, info) = naga(path)?;
    let options = Options { shader_model: ShaderModel::V6_6, fake_missing_bindings: true, ..Options::default() };
    let (mut text, pipeline) = (String::new(), PipelineOptions::default());
    let written = Writer::new(&mut text, &options, &pipeline).write(&module, &info, None::<&FragmentEntryPoint<'_>>);
    let written = written.map_err(|error| error.to_string())?;
    // An entry point may fail by itself.
    written.entry_point_names.into_iter().try_for_each(|name| name.map(drop).map_err(|error| error.to_string()))
}

/// Writes a kernel as wgpu does for Metal.
fn msl(path: &Path) -> Result<(), String> {
    use naga::back::msl::{Options, PipelineOptions, write_string};
    let (module, info) = naga(path)?;
    let options = Options { lang_version: (3, 1), fake_missing_bindings: true, ..Options::default() };
    let (_, written) =
        write_string(&module, &info, &options, &PipelineOptions::default()).map_err(|error| error.to_string())?;
    written.entry_point_names.into_iter().try_for_each(|name| name.map(drop).map_err(|error| error.to_string()))
}

/// Compiles kernels for one of Intel's GPUs. Returns what failed.
fn intel(gpu: &str, inputs: &[PathBuf]) -> Vec<String> {
    let chunks: Vec<&[PathBuf]> = inputs.chunks(20).collect();
    failures(&chunks, |chunk| {
        let sources: std::io::Result<Vec<Source>> = chunk.iter().map(|path| source(path)).collect();
        let reports =
            sources.and_then(|sources| ocloc::compile(gpu, &sources)).expect("kernels can be read and copied");
        let judged = chunk.iter().zip(reports).map(|(path, report)| (path, judge(path, report)));
        judged.filter_map(|(path, outcome)| Some(format!("{}: {}", name(path), outcome.err()?))).collect()
    })
}

/// The disassembly of a kernel of the dump.
fn disassembly(path: &Path) -> String {
    std::fs::read_to_string(path.with_extension("spvasm")).expect("a kernel is dumped with its disassembly")
}

/// A kernel of the dump.
fn source(path: &Path) -> std::io::Result<Source> {
    Ok(Source { spirv: std::fs::read(path)?, large_registers: has_large_registers(&disassembly(path)) })
}

/// Whether the head of a disassembly says so.
fn has_large_registers(disassembly: &str) -> bool {
    disassembly.lines().next().is_some_and(|head| head.contains("large registers"))
}

/// A matrix product must keep its sums in registers. Otherwise they go to memory and back in each turn of the loop.
/// Blocks that Intel's tuning files lack are for other GPUs.
fn judge(path: &Path, report: Result<Report, String>) -> Result<(), String> {
    let report = report?;
    let blocks = tuning::entry("intel").map_or(&[][..], |entry| entry.tuning.matmul.blocks);
    let name = name(path);
    let is = |block: &Block| name.contains(&format!("{}x{}x{}", block.shape[0], block.shape[1], block.depth));
    let hot = is_product(path) && (name.contains("registers") || blocks.iter().any(is));
    if hot && !report.is_in_registers() {
        return Err(format!("not all in registers: {report}"));
    }
    Ok(())
}

/// Dawn for Node, if both are there.
fn tint_library() -> Option<PathBuf> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/node/node_modules/webgpu/index.js");
    let node = Command::new("node").arg("--version").output();
    (node.is_ok() && library.exists()).then_some(library)
}

/// Compiles WGSL with Tint. Returns what failed.
fn tint(library: &Path, folder: &Path, inputs: &[PathBuf]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/tint.mjs");
    // A process uses one processor.
    let chunks: Vec<&[PathBuf]> = inputs.chunks(500).collect();
    failures(&chunks, |chunk| {
        let files = chunk.iter().map(|path| name(path));
        let run = Command::new("node").arg(&script).arg(library).arg(folder).args(files).output();
        let run = run.expect("node has been run before");
        let text = String::from_utf8_lossy(&run.stdout);
        let mut failures: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("failed ")).map(String::from).collect();
        let told = |what| text.lines().find_map(|line| line.strip_prefix(what)?.parse::<usize>().ok());
        let passed = told("compiled ").zip(told("left out ")).map(|(compiled, left_out)| compiled + left_out);
        if passed.is_none_or(|passed| passed + failures.len() != chunk.len()) {
            let errors = String::from_utf8_lossy(&run.stderr);
            failures.push(format!("{}: did not come to an end: {text}{}", name(&chunk[0]), errors.trim()));
        }
        failures
    })
}
