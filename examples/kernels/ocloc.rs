//! Intel's offline compiler `ocloc`, and its reports on kernels for GPUs that need not be present.

use object::{Object, ObjectSection};
use saphyr::{LoadableYamlNode, Yaml};
use std::fmt;
use std::path::Path;
use std::process::Command;

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

/// A kernel to compile.
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

/// Compiles kernels for a GPU in one process, which takes half the time of a process for each kernel. The error of a
/// kernel is the compiler's output.
pub fn compile(gpu: &str, kernels: &[Source]) -> std::io::Result<Vec<Result<Report, String>>> {
    let folder = tempfile::tempdir()?;
    for (number, kernel) in kernels.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{number}.spv")), &kernel.spirv)?;
    }
    let mut reports = Vec::new();
    // ocloc ends at the first kernel that fails. The next process continues after that kernel.
    while reports.len() < kernels.len() {
        let rest = kernels.iter().enumerate().skip(reports.len());
        let commands: String = rest.map(|(number, kernel)| command(gpu, number, kernel)).collect();
        std::fs::write(folder.path().join("commands"), commands)?;
        let output = Command::new("ocloc").args(["multi", "commands"]).current_dir(&folder).output()?;
        let log = [output.stdout, output.stderr].concat();
        let log = String::from_utf8_lossy(&log);
        let first = reports.len();
        for (number, log) in (first..kernels.len()).zip(log.split("Command number").skip(1)) {
            reports.push(read(&folder.path().join(format!("{number}.bin")), log));
        }
        if reports.len() == first {
            reports.push(Err(log.trim().to_string()));
        }
    }
    Ok(reports)
}

/// Returns a line for `ocloc multi`. The zebin format describes the compiled kernel; later versions use it by default.
fn command(gpu: &str, number: usize, kernel: &Source) -> String {
    let options = if kernel.large_registers { "-options -ze-opt-large-register-file" } else { "" };
    format!(
        "-spirv_input -file {number}.spv -device {gpu} --format zebin -output_no_suffix -out_dir . -output {number}.bin {options}\n"
    )
}

fn read(binary: &Path, log: &str) -> Result<Report, String> {
    let Ok(bytes) = std::fs::read(binary) else { return Err(format!("no binary: {}", log.trim())) };
    Report::new(&bytes, log).ok_or_else(|| format!("a binary without a kernel: {}", log.trim()))
}

impl Report {
    /// Reads a zebin and the compiler's log. A zebin is an ELF file whose section `.ze_info` describes the kernel in
    /// YAML. `IGC/ZEBinWriter/zebin/spec/zeinfo.md` of Intel's graphics compiler documents its keys.
    fn new(binary: &[u8], log: &str) -> Option<Report> {
        let elf = object::File::parse(binary).ok()?;
        let info = elf.section_by_name_bytes(b".ze_info")?.data().ok()?;
        let info = Yaml::load_from_str(std::str::from_utf8(info).ok()?.trim_end_matches('\0')).ok()?;
        let kernel = info.first()?.as_mapping_get("kernels")?.as_sequence_get(0)?;
        let environment = kernel.as_mapping_get("execution_env")?;
        let code = elf.sections().filter(|section| section.name_bytes().is_ok_and(|name| name.starts_with(b".text")));
        Some(Report {
            simd: number(environment, "simd_size")?,
            registers: number(environment, "grf_count")?,
            spilled: spilled(log),
            scratch: buffers(kernel, "scratch"),
            private: buffers(kernel, "global"),
            workgroup_memory: number(environment, "slm_size").unwrap_or(0),
            code: code.map(|section| section.size()).sum(),
        })
    }

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
fn spilled(log: &str) -> u64 {
    let count = log.split("spilled around ").nth(1).and_then(|rest| rest.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}
