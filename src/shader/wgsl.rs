//! Kernels as WGSL: the Vulkan dialect of SPIR-V, translated by naga.

use super::nesting;
use crate::base::error::{Error, Result};
use crate::shader::Module;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Translates a kernel of [`Target::WEBGPU`](crate::shader::Target::WEBGPU). Checks that it uses only the features that
/// it states in `requires`.
pub(crate) fn translate(module: &Module) -> Result<String> {
    // naga's SPIR-V reader still indexes and unwraps in places, for example for an id that no instruction defines. A
    // malformed module must not take the process down.
    on_large_stack(|| without_panics(|| translate_unguarded(module)))
        .and_then(|translated| translated)
        .and_then(|translated| translated)
        .map_err(|message| Error::Kernel { kernel: module.name.clone(), message })
}

/// Runs something of naga's, and turns a panic into an error. Nothing of naga's may outlive the call, as it could be
/// torn.
pub(crate) fn without_panics<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        format!("naga panicked: {text}")
    })
}

/// The stack of [`on_large_stack`] in bytes. Unoptimized, naga takes up to 40 KB for each of the levels that
/// [`nesting`] lets pass. The system hands out only what is touched.
const STACK: usize = 128 << 20;

/// Runs something that calls naga on a thread with a large stack. naga is recursive, and the caller's stack may be of
/// any size. A browser has no threads, so there it runs at once.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if cfg!(not(native)) {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("naga".into()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread for the compiler: {error}"))?;
        // A panic continues in the caller.
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// What browsers want if a kernel uses subgroups. naga's own parser refuses it. The kernel must see to it that all
/// lanes come by, because browsers cannot follow what depends on the workgroup.
const SUBGROUPS: &str = "enable subgroups; diagnostic(off, subgroup_uniformity);";

/// Adds what browsers want.
pub(crate) fn for_browser(wgsl: &str, module: &Module) -> String {
    if module.requires.subgroups { format!("{SUBGROUPS}\n{wgsl}") } else { wgsl.to_string() }
}

fn translate_unguarded(module: &Module) -> Result<String, String> {
    let options = naga::front::spv::Options {
        adjust_coordinate_space: false,
        strict_capabilities: true,
        block_ctx_dump_prefix: None,
    };
    let words = module.spirv().map_err(|error| error.to_string())?;
    let mut ir = naga::front::spv::Frontend::new(words.iter().copied(), &options)
        .parse()
        .map_err(|error| format!("naga cannot read the SPIR-V: {}", with_sources(&error)))?;
    ir.entry_points.retain(|entry_point| entry_point.name == module.entry_point);
    if ir.entry_points.is_empty() {
        return Err(format!("it has no entry point `{}`", module.entry_point));
    }
    compute_both_sides(&mut ir);
    let info = Validator::new(ValidationFlags::all(), capabilities(module))
        .validate(&ir)
        .map_err(|error| format!("naga finds the kernel invalid: {}", with_sources(error.as_inner())))?;
    nesting::name_deep(&mut ir, &info);
    naga::back::wgsl::write_string(&ir, &info, naga::back::wgsl::WriterFlags::empty())
        .map_err(|error| format!("naga cannot write the kernel as WGSL: {}", with_sources(&error)))
}

/// Makes each `&&` and `||` a `&` and `|`. SPIR-V computes both sides of a logical operation, but WGSL branches over
/// the right side of these. SwiftShader, Chromium's driver for the processor, compiled a kernel with 34 of them for
/// 100 s until the browser ended it. Now it takes 0.4 s.
fn compute_both_sides(ir: &mut naga::Module) {
    use naga::{BinaryOperator, Expression};
    let entry_points = ir.entry_points.iter_mut().map(|entry_point| &mut entry_point.function);
    for function in ir.functions.iter_mut().map(|(_, function)| function).chain(entry_points) {
        for (_, expression) in function.expressions.iter_mut() {
            if let Expression::Binary { op, .. } = expression {
                *op = match *op {
                    BinaryOperator::LogicalAnd => BinaryOperator::And,
                    BinaryOperator::LogicalOr => BinaryOperator::InclusiveOr,
                    other => other,
                };
            }
        }
    }
}

/// Returns what the validator lets pass: WGSL without extensions (which has `unpack2x16float`), and what the kernel
/// requires.
fn capabilities(module: &Module) -> Capabilities {
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    capabilities.set(Capabilities::SHADER_FLOAT16, module.requires.f16);
    capabilities.set(Capabilities::SHADER_INT64, module.requires.i64);
    capabilities.set(Capabilities::FLOAT64, module.requires.f64);
    capabilities.set(Capabilities::SUBGROUP, module.requires.subgroups);
    capabilities.set(Capabilities::SHADER_FLOAT32_ATOMIC, module.requires.float_atomics);
    capabilities
}

/// Returns the text of an error and of all its sources.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::features::Features;
    use crate::shader::{Code, ParameterBlock};
    use rspirv::binary::Assemble;
    use rspirv::dr::Builder;
    use rspirv::spirv::{
        AddressingModel, Capability, ExecutionMode, ExecutionModel, FunctionControl, MemoryModel, Op, StorageClass,
    };

    /// A kernel that declares `capabilities` and does what `body` says.
    fn module(capabilities: &[Capability], body: impl FnOnce(&mut Builder)) -> Module {
        let mut b = Builder::new();
        b.set_version(1, 3);
        for &capability in capabilities {
            b.capability(capability);
        }
        b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
        let void = b.type_void();
        let signature = b.type_function(void, []);
        let main = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
        b.begin_block(None).unwrap();
        body(&mut b);
        b.ret().unwrap();
        b.end_function().unwrap();
        b.entry_point(ExecutionModel::GLCompute, main, "main", []);
        b.execution_mode(main, ExecutionMode::LocalSize, [64, 1, 1]);
        Module {
            name: "sample".into(),
            code: Code::Spirv(b.module().assemble()),
            entry_point: "main".into(),
            bindings: Vec::new(),
            parameter_words: 0,
            parameters: ParameterBlock::Uniform,
            workgroup: [64, 1, 1],
            workgroup_memory: 0,
            requires: Features::default(),
            trusted: true,
            large_registers: false,
            prefers_bindings: false,
            large_buffers: false,
            addresses: false,
        }
    }

    fn message(module: &Module) -> String {
        match translate(module) {
            Err(Error::Kernel { kernel, message }) if kernel == module.name => message,
            other => panic!("expected a kernel error, got {other:?}"),
        }
    }

    #[test]
    fn translates_a_kernel() {
        let wgsl = translate(&module(&[Capability::Shader], |_| ())).unwrap();
        assert!(wgsl.contains("@compute @workgroup_size(64, 1, 1)") && wgsl.contains("fn main("), "{wgsl}");
    }

    #[test]
    fn the_entry_point_is_the_one_that_is_named() {
        let mut kernel = module(&[Capability::Shader], |b| {
            let main = b.module_ref().functions[0].def_id().unwrap();
            b.entry_point(ExecutionModel::GLCompute, main, "other", []);
            b.execution_mode(main, ExecutionMode::LocalSize, [32, 1, 1]);
        });
        assert_eq!(translate(&kernel).unwrap().matches("@compute").count(), 1);
        kernel.entry_point = "third".into();
        assert_eq!(message(&kernel), "it has no entry point `third`");
    }

    #[test]
    fn a_feature_must_be_stated_to_be_used() {
        let mut kernel = module(&[Capability::Shader, Capability::Float16], |b| {
            let half = b.type_float(16, None);
            let pointer = b.type_pointer(None, StorageClass::Function, half);
            b.variable(pointer, None, StorageClass::Function, None);
        });
        let refusal = message(&kernel);
        assert!(refusal.starts_with("naga finds the kernel invalid: ") && refusal.contains("FLOAT16"), "{refusal}");
        kernel.requires.f16 = true;
        assert!(translate(&kernel).unwrap().contains("enable f16;"));
    }

    #[test]
    fn what_naga_refuses_is_a_kernel_error() {
        let refusal = message(&module(&[Capability::Shader, Capability::DotProduct], |_| ()));
        assert!(refusal.starts_with("naga cannot read the SPIR-V: ") && refusal.contains("DotProduct"), "{refusal}");
    }

    #[test]
    fn what_naga_panics_on_is_a_kernel_error() {
        // A local size of two dimensions: OpExecutionMode has one word too few.
        let mut kernel = module(&[Capability::Shader], |_| ());
        let mode = |word: u32| word & 0xffff == Op::ExecutionMode as u32 && word >> 16 == 6;
        let mut words = kernel.spirv().unwrap().to_vec();
        let place = words.iter().position(|&word| mode(word)).unwrap();
        words[place] -= 1 << 16;
        words.remove(place + 5);
        kernel.code = Code::Spirv(words);
        let refusal = message(&kernel);
        assert!(refusal.starts_with("naga panicked: index out of bounds"), "{refusal}");
    }

    #[test]
    fn browsers_want_subgroups_enabled() {
        let mut kernel = module(&[Capability::Shader], |_| ());
        assert_eq!(for_browser("fn main() {}", &kernel), "fn main() {}");
        kernel.requires.subgroups = true;
        assert_eq!(for_browser("fn main() {}", &kernel), format!("{SUBGROUPS}\nfn main() {{}}"));
    }
}
