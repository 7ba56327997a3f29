//! The output of Intel's offline compiler is parsed correctly: the conformance suite relies on it.

#[path = "../examples/kernels/ocloc.rs"]
mod ocloc;

use marquetry::BlockFormat;
use marquetry::internals::catalogue;
use marquetry::shader::{Access, KernelBuilder, Module, Target, Type};
use ocloc::{Report, Source};

/// A kernel that keeps `count` sums over a loop. Each sum depends on its neighbour.
fn sums(count: u32, large_registers: bool) -> Source {
    let k = KernelBuilder::new("sums", Target::LEVEL_ZERO, 64);
    let steps = k.parameter(Type::U32);
    let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::F32, Access::Write));
    let first = k.global_index() * count;
    let sums: Vec<_> = (0..count).map(|i| k.var(x.load(first + i))).collect();
    k.for_range(0, steps, |step| {
        let factor = x.load(step);
        for (i, sum) in sums.iter().enumerate() {
            sum.set(sum.get().fma(factor, sums[(i + 7) % sums.len()].get()));
        }
    });
    for (i, sum) in sums.iter().enumerate() {
        y.store(first + i as u32, sum.get());
    }
    source(&k.finish().unwrap(), large_registers)
}

fn source(module: &Module, large_registers: bool) -> Source {
    let spirv = module.spirv().unwrap().iter().flat_map(|word| word.to_le_bytes()).collect();
    Source { spirv, large_registers }
}

fn compile(gpu: &str, kernels: &[Source]) -> Vec<Result<Report, String>> {
    assert_eq!(ocloc::why_missing(), None);
    ocloc::compile(gpu, kernels).unwrap()
}

#[test]
fn spilled_registers_are_told_on_every_gpu() {
    for gpu in ocloc::GPUS {
        let [few, many]: [_; 2] = compile(gpu, &[sums(8, false), sums(300, false)]).try_into().unwrap();
        let (few, many) = (few.unwrap(), many.unwrap());
        assert!(few.is_in_registers(), "{gpu}: {few}");
        assert!(many.spilled > 0 && many.scratch > 0, "{gpu}: {many}");
        assert!([8, 16, 32].contains(&few.simd) && few.registers == 128 && few.code > 0, "{gpu}: {few}");
    }
}

/// The kernels that Intel's GPUs run. The quick tier has those of one vector, and of many in one format.
#[test]
fn products_with_quantised_matrices_stay_in_registers() {
    let all = std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full");
    let formats = if all { &BlockFormat::ALL[..] } else { &[BlockFormat::Q4_K] };
    for gpu in ["dg2", "pvc"] {
        let mut kernels = catalogue(ocloc::target(gpu)).unwrap();
        kernels.retain(|kernel| {
            let name = kernel.name();
            let few = name.starts_with(if all { "block product(" } else { "block product(1 " });
            let many =
                name.starts_with("matmul(") && formats.iter().any(|format| name.contains(&format!(" by {format}")));
            few && !name.contains("own rows") || many
        });
        assert!(kernels.len() >= 15, "one for each format");
        let large = |kernel: &Module| kernel.large_registers();
        let sources: Vec<_> = kernels.iter().map(|kernel| source(kernel, large(kernel))).collect();
        for (kernel, report) in kernels.iter().zip(compile(gpu, &sources)) {
            let report = report.unwrap();
            assert!(report.is_in_registers(), "{gpu}, {}: {report}", kernel.name());
        }
    }
}

#[test]
fn large_registers_are_handed_over() {
    for gpu in ["dg2", "pvc"] {
        let reports = compile(gpu, &[sums(64, false), sums(64, true)]);
        let registers = reports.into_iter().map(|report| report.unwrap().registers);
        assert!(registers.eq([128, 256]), "{gpu}");
    }
}

#[test]
fn private_arrays_and_workgroup_memory_are_told() {
    let k = KernelBuilder::new("arrays", Target::LEVEL_ZERO, 64);
    let x = k.buffer("x", Type::U32, Access::ReadWrite);
    let (private, shared) = (k.local_array(Type::U32, 500), k.workgroup_array(Type::U32, 64));
    let steps = k.parameter(Type::U32);
    k.for_range(0, steps, |i| private.store(x.load(i), i));
    shared.store(k.local_index(), private.load(x.load(k.local_index())));
    k.barrier();
    x.store(k.global_index(), shared.load(k.u32(63) - k.local_index()));
    let kernel = [source(&k.finish().unwrap(), false)];
    for gpu in ocloc::GPUS {
        let report = compile(gpu, &kernel).remove(0).unwrap();
        // 500 words are too many for the registers of any GPU.
        assert!(report.scratch + report.private >= 2000 && report.spilled == 0, "{gpu}: {report}");
        assert_eq!(report.workgroup_memory, 256, "{gpu}");
    }
}

#[test]
fn some_gpus_have_no_64_bit_floats() {
    let k = KernelBuilder::new("doubles", Target::LEVEL_ZERO, 64);
    let x = k.buffer("x", Type::F64, Access::ReadWrite);
    let i = k.global_index();
    x.store(i, x.load(i) * 3.0);
    let kernel = [source(&k.finish().unwrap(), false)];
    for gpu in ocloc::GPUS {
        assert_eq!(compile(gpu, &kernel)[0].is_ok(), ocloc::has_f64(gpu), "{gpu}");
    }
}

#[test]
fn some_gpus_have_no_dot_products() {
    let k = KernelBuilder::new("dot", Target::LEVEL_ZERO.integer_dot_products(true), 64);
    let x = k.buffer("x", Type::U32, Access::ReadWrite);
    let i = k.global_index();
    x.store(i, x.load(i).dot_u8(k.u32(0x0102_0304), k.u32(5)));
    let kernel = [source(&k.finish().unwrap(), false)];
    for gpu in ocloc::GPUS {
        assert_eq!(compile(gpu, &kernel)[0].is_ok(), ocloc::has_dot_products(gpu), "{gpu}");
    }
}

#[test]
fn kernels_behind_one_that_fails_are_compiled() {
    let broken = || Source { spirv: vec![0; 64], large_registers: false };
    let mut headless = sums(4, false);
    // A module that ends before its first function compiles to a binary without a kernel.
    headless.spirv.truncate(20);
    let reports = compile("dg2", &[broken(), sums(4, false), headless, broken(), sums(4, false)]);
    let good: Vec<bool> = reports.iter().map(Result::is_ok).collect();
    assert_eq!(good, [false, true, false, false, true], "{reports:?}");
}
