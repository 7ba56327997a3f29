//! Intel's offline compiler `ocloc`, and its reports on kernels for GPUs that need not be present.

use marquetry::shader::Target;
use object::{Object, ObjectSection};
use saphyr::{LoadableYamlNode, Yaml};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fmt, io};

/// GPUs of five generations, by their names in ocloc 22.43: Gen9 (Skylake), Xe-LP (Tiger Lake), Xe-HPG (Arc A), Xe-HP
/// and Xe-HPC (Data Center GPU Max).
pub const GPUS: [&str; 5] = ["skl", "tgllp", "dg2", "xe_hp_sdv", "pvc"];

/// Whether a GPU computes in 64-bit floats. GPUs for displays have not had them since Gen9.
pub fn has_f64(gpu: &str) -> bool {
    !matches!(gpu, "tgllp" | "dg2")
}

/// Whether a GPU has an instruction for integer dot products. All GPUs since Xe-LP have it. For the others, the
/// compiler fails on SPIR-V's instruction.
pub fn has_dot_products(gpu: &str) -> bool {
    gpu != "skl"
}

/// Returns the form of the kernels for a GPU.
#[allow(dead_code, reason = "some tests make their own kernels")]
pub fn target(gpu: &str) -> Target {
    let target = Target::LEVEL_ZERO.integer_dot_products(has_dot_products(gpu));
    // The others have subgroups of 8 lanes.
    if gpu == "pvc" { target.narrow_lanes(16) } else { target }
}

/// A kernel to compile.
#[derive(Clone)]
pub struct Source {
    /// SPIR-V of the OpenCL dialect.
    pub spirv: Vec<u8>,
    /// Whether to run fewer hardware threads with more registers each, if the GPU has that choice.
    pub large_registers: bool,
}

/// The compiler's report on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Invocations that a hardware thread runs at a time.
    pub simd: u64,
    /// Registers that a hardware thread has.
    pub registers: u64,
    /// Registers that were spilled to memory, as the compiler's warning counts them.
    pub spilled: u64,
    /// Bytes of memory per hardware thread for spilled registers and private arrays.
    pub scratch: u64,
    /// Bytes of global memory per invocation for private arrays that are not in scratch memory.
    pub private: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u64,
    /// Bytes of machine code.
    pub code: u64,
}

/// Returns why ocloc cannot be run; `None` if it can.
pub fn why_missing() -> Option<String> {
    let error = Command::new("ocloc").arg("--help").output().err()?;
    Some(format!(
        "ocloc cannot be run ({error}): it comes with the package intel-ocloc or intel-opencl-icd; run `make setup`"
    ))
}

/// Compiles kernels for a GPU. The error of a kernel is the compiler's output.
///
/// Half of the compiler's time goes into its preparations for a module. So kernels are linked into one module first. If
/// a module fails, its kernels are compiled alone.
pub fn compile(gpu: &str, kernels: &[Source]) -> io::Result<Vec<Result<Report, String>>> {
    let mut found: Vec<Option<Result<Report, String>>> = kernels.iter().map(|_| None).collect();
    let groups: Vec<Vec<usize>> = alike(kernels).into_iter().filter(|group| group.len() > 1).collect();
    let modules: io::Result<Vec<_>> = groups.iter().map(|group| link(kernels, group)).collect();
    // If there is no linker, all kernels are compiled alone.
    let modules = modules.unwrap_or_default();
    for (group, reports) in groups.iter().zip(compile_modules(gpu, &modules)?) {
        let Ok(mut reports) = reports else { continue };
        for &number in group {
            found[number] = reports.remove(&name_in_module(number)).map(Ok);
        }
    }
    let alone: Vec<usize> = (0..kernels.len()).filter(|&number| found[number].is_none()).collect();
    let modules: Vec<_> = alone.iter().map(|&number| kernels[number].clone()).collect();
    for (number, reports) in alone.into_iter().zip(compile_modules(gpu, &modules)?) {
        let only = reports.and_then(|reports| reports.into_values().next().ok_or("a binary without a kernel".into()));
        found[number] = Some(only);
    }
    Ok(found.into_iter().flatten().collect())
}

/// Returns groups of kernels that can be linked: they share the version of SPIR-V and the choice of registers.
fn alike(kernels: &[Source]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (number, kernel) in kernels.iter().enumerate() {
        groups.entry((word(&kernel.spirv, 1), kernel.large_registers)).or_default().push(number);
    }
    groups.into_values().collect()
}

/// Links kernels into one module.
fn link(kernels: &[Source], group: &[usize]) -> io::Result<Source> {
    let folder = tempfile::tempdir()?;
    let file = |number: &usize| format!("{number}.spv");
    for number in group {
        std::fs::write(folder.path().join(file(number)), renamed(&kernels[*number].spirv, &name_in_module(*number))?)?;
    }
    let files = group.iter().map(file);
    let output = Command::new("spirv-link").args(files).args(["-o", "linked"]).current_dir(&folder).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr)));
    }
    Ok(Source {
        spirv: std::fs::read(folder.path().join("linked"))?,
        large_registers: kernels[group[0]].large_registers,
    })
}

/// Returns the entry point of a kernel in a linked module. Its name takes as many words as `main`.
fn name_in_module(number: usize) -> String {
    format!("k{number:06}")
}

/// Returns the module with another name for its entry point `main`.
fn renamed(spirv: &[u8], name: &str) -> io::Result<Vec<u8>> {
    const HEADER: usize = 5;
    const ENTRY_POINT: u32 = 15;
    let mut spirv = spirv.to_vec();
    let mut at = HEADER;
    while at < spirv.len() / 4 {
        let instruction = word(&spirv, at);
        let name_at = 4 * (at + 3);
        if instruction & 0xffff == ENTRY_POINT && spirv[name_at..].starts_with(b"main\0") {
            spirv[name_at..][..name.len()].copy_from_slice(name.as_bytes());
            return Ok(spirv);
        }
        at += (instruction >> 16).max(1) as usize;
    }
    Err(io::Error::other("a module without the entry point `main`"))
}

fn word(spirv: &[u8], at: usize) -> u32 {
    spirv[4 * at..][..4].try_into().map_or(0, u32::from_le_bytes)
}

/// The reports on a module's kernels, by the names of their entry points.
type Reports = BTreeMap<String, Report>;

/// Compiles modules for a GPU in one process.
fn compile_modules(gpu: &str, modules: &[Source]) -> io::Result<Vec<Result<Reports, String>>> {
    let folder = tempfile::tempdir()?;
    for (number, module) in modules.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{number}.spv")), &module.spirv)?;
    }
    let mut reports = Vec::new();
    // ocloc ends at the first module that fails. The next process continues after that module.
    while reports.len() < modules.len() {
        let rest = modules.iter().enumerate().skip(reports.len());
        let commands: String = rest.map(|(number, module)| command(gpu, number, module)).collect();
        std::fs::write(folder.path().join("commands"), commands)?;
        let output = Command::new("ocloc").args(["multi", "commands"]).current_dir(&folder).output()?;
        let log = [output.stdout, output.stderr].concat();
        let log = String::from_utf8_lossy(&log);
        let first = reports.len();
        for (number, log) in (first..modules.len()).zip(log.split("Command number").skip(1)) {
            reports.push(read(&folder.path().join(format!("{number}.bin")), log));
        }
        if reports.len() == first {
            reports.push(Err(log.trim().to_string()));
        }
    }
    Ok(reports)
}

/// Returns a line for `ocloc multi`. The zebin format describes the compiled kernels; later versions use it by default.
fn command(gpu: &str, number: usize, module: &Source) -> String {
    let options = if module.large_registers { "-options -ze-opt-large-register-file" } else { "" };
    format!(
        "-spirv_input -file {number}.spv -device {gpu} --format zebin -output_no_suffix -out_dir . -output {number}.bin {options}\n"
    )
}

fn read(binary: &Path, log: &str) -> Result<Reports, String> {
    let Ok(bytes) = std::fs::read(binary) else { return Err(format!("no binary: {}", log.trim())) };
    reports(&bytes, log).ok_or_else(|| format!("a binary without a kernel: {}", log.trim()))
}

/// Reads a zebin and the compiler's log. A zebin is an ELF file whose section `.ze_info` describes the kernels in YAML.
/// `IGC/ZEBinWriter/zebin/spec/zeinfo.md` of Intel's graphics compiler documents its keys.
fn reports(binary: &[u8], log: &str) -> Option<Reports> {
    let elf = object::File::parse(binary).ok()?;
    let info = elf.section_by_name_bytes(b".ze_info")?.data().ok()?;
    let info = Yaml::load_from_str(std::str::from_utf8(info).ok()?.trim_end_matches('\0')).ok()?;
    let kernels = info.first()?.as_mapping_get("kernels")?.as_sequence()?;
    let report = |kernel: &Yaml| {
        let name = kernel.as_mapping_get("name")?.as_str()?;
        let environment = kernel.as_mapping_get("execution_env")?;
        let report = Report {
            simd: number(environment, "simd_size")?,
            registers: number(environment, "grf_count")?,
            spilled: spilled(log, name),
            scratch: buffers(kernel, "scratch"),
            private: buffers(kernel, "global"),
            workgroup_memory: number(environment, "slm_size").unwrap_or(0),
            code: elf.section_by_name(&format!(".text.{name}"))?.size(),
        };
        Some((name.to_string(), report))
    };
    kernels.iter().map(report).collect()
}

impl Report {
    /// Whether an invocation keeps everything in registers.
    pub fn is_in_registers(&self) -> bool {
        [self.spilled, self.scratch, self.private] == [0; 3]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { simd, registers, spilled, scratch, private, .. } = self;
        write!(
            f,
            "SIMD{simd}, {registers} registers, {spilled} spilled; {scratch} bytes of scratch memory per thread, \
             {private} of private memory per invocation"
        )
    }
}

fn number(map: &Yaml, key: &str) -> Option<u64> {
    map.as_mapping_get(key)?.as_integer()?.try_into().ok()
}

/// Returns the bytes of all per-thread buffers of a type.
fn buffers(kernel: &Yaml, ty: &str) -> u64 {
    let buffers = kernel.as_mapping_get("per_thread_memory_buffers").and_then(Yaml::as_sequence);
    let of_type = buffers.into_iter().flatten().filter(|buffer| {
        let told = buffer.as_mapping_get("type").and_then(Yaml::as_str);
        told == Some(ty)
    });
    of_type.filter_map(|buffer| number(buffer, "size")).sum()
}

/// Reads the count of a warning such as `kernel main compiled SIMD8 allocated 128 regs and spilled around 165`.
fn spilled(log: &str, kernel: &str) -> u64 {
    let warning = log.lines().find(|line| line.contains(&format!("kernel {kernel} ")));
    let count = warning.and_then(|line| line.split("spilled around ").nth(1)?.split_whitespace().next()?.parse().ok());
    count.unwrap_or(0)
}
