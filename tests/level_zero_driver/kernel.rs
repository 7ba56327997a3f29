//! Kernels. Their arguments are state, which a launch copies when it is appended.

use crate::Outcome;
use crate::context::Context;
use crate::device;
use crate::ffi::*;
use crate::handles::{Handle, Life, Object};
use crate::memory::{self, Use};
use crate::module::Module;
use crate::opencl::{self, KernelQuery, Value};
use crate::pointer::Pointer;
use crate::report::{misuse, note};
use crate::spirv::{Parameter, Signature};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::Arc;

pub struct Kernel {
    life: Life,
    module: Arc<Module>,
    signature: Signature,
    state: Mutex<State>,
    /// Locked while a launch sets its arguments and runs.
    compiled: Mutex<opencl::Kernel>,
}

struct State {
    group: Option<[u32; 3]>,
    values: Vec<Option<Value>>,
}

impl Object for Kernel {
    fn life(&self) -> &Life {
        &self.life
    }

    fn context(&self) -> &Context {
        self.module.context()
    }
}

/// A kernel, and its arguments at the time when the launch was appended.
pub struct Launch {
    pub kernel: Arc<Kernel>,
    values: Vec<Value>,
    group: [usize; 3],
    groups: [usize; 3],
}

impl Launch {
    /// Copies the kernel's state. Also returns the allocations that the arguments point into.
    pub fn new(kernel: Arc<Kernel>, groups: GroupCount) -> Outcome<(Self, Vec<Use>)> {
        let invalid = |message: String| {
            misuse(ResultCode::ERROR_INVALID_ARGUMENT, format!("kernel `{}`: {message}", kernel.signature.name))
        };
        let groups = [groups.group_count_x, groups.group_count_y, groups.group_count_z].map(|count| count as usize);
        if groups.contains(&0) {
            return Err(invalid(format!("launched with {groups:?} groups")));
        }
        let state = kernel.state.lock();
        let group = state.group.ok_or_else(|| invalid("launched before its group size was set".into()))?;
        let mut values = Vec::with_capacity(state.values.len());
        let mut memory = Vec::new();
        for (index, value) in state.values.iter().enumerate() {
            let value = value.clone().ok_or_else(|| invalid(format!("argument {index} was never set")))?;
            if let Value::Memory(address) = value
                && address != 0
            {
                let allocation = memory::find(address).ok_or_else(|| {
                    invalid(format!("argument {index}, {address:#x}, points to no allocation (any more)"))
                })?;
                memory.push(Use::whole(&allocation));
            }
            values.push(value);
        }
        drop(state);
        Ok((Self { kernel, values, group: group.map(|size| size as usize), groups }, memory))
    }

    pub fn run(&self, queue: &opencl::Queue) {
        let result = queue.run(&mut self.kernel.compiled.lock(), &self.values, self.group, self.groups);
        if let Err(code) = result {
            note(format!("kernel `{}` did not run: {code}", self.kernel.signature.name));
        }
    }
}

impl Kernel {
    /// The group size that the kernel was compiled for, or zeros if any size is allowed.
    fn required_group(compiled: &opencl::Kernel) -> [u32; 3] {
        let sizes = compiled.numbers(KernelQuery::RequiredGroup);
        [0, 1, 2].map(|axis| sizes.get(axis).map_or(0, |&size| size as u32))
    }
}

pub fn kernel_create(module: ModuleHandle, desc: Pointer<KernelDesc>, kernel: Pointer<KernelHandle>) -> Outcome {
    use crate::pointer::Argument;
    let module = module.get()?;
    // SAFETY: the interface requires that the description points to a string.
    let name = unsafe { desc.read()?.kernel_name.checked() }.text()?;
    let (compiled, signature) = module.kernel(&name)?;
    let state = State { group: None, values: vec![None; signature.parameters.len()] };
    let object =
        Kernel { life: Life::default(), module, signature, state: Mutex::new(state), compiled: Mutex::new(compiled) };
    kernel.write(KernelHandle::create(Arc::new(object)))
}

pub fn kernel_destroy(kernel: KernelHandle) -> Outcome {
    kernel.remove().map(drop)
}

pub fn kernel_set_group_size(kernel: KernelHandle, x: u32, y: u32, z: u32) -> Outcome {
    let kernel = kernel.get()?;
    let size = [x, y, z];
    let limits = device::limits();
    let fits = size.iter().zip(limits.group_sizes).all(|(&size, limit)| size > 0 && size <= limit);
    let total: u64 = size.iter().map(|&size| u64::from(size)).product();
    let required = Kernel::required_group(&kernel.compiled.lock());
    if !fits || total > u64::from(limits.group_size) || (required != [0; 3] && required != size) {
        return Err(ResultCode::ERROR_INVALID_GROUP_SIZE_DIMENSION);
    }
    kernel.state.lock().group = Some(size);
    Ok(())
}

pub fn kernel_set_argument_value(kernel: KernelHandle, index: u32, size: usize, value: Pointer<c_void>) -> Outcome {
    let kernel = kernel.get()?;
    let parameter = kernel.signature.parameters.get(index as usize);
    let parameter = *parameter.ok_or(ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_INDEX)?;
    let expected = match parameter {
        Parameter::Value(bytes) => bytes,
        Parameter::Memory => size_of::<usize>(),
        Parameter::Local => size,
    };
    if size != expected {
        return Err(ResultCode::ERROR_INVALID_KERNEL_ARGUMENT_SIZE);
    }
    let value = match parameter {
        Parameter::Value(_) => Value::Bytes(value.bytes().read_all(size)?),
        Parameter::Memory if value.is_null() => Value::Memory(0),
        Parameter::Memory => {
            let bytes = value.bytes().read_all(size)?;
            Value::Memory(usize::from_ne_bytes(bytes.try_into().expect("the size was checked")))
        }
        Parameter::Local => Value::Local(size),
    };
    kernel.state.lock().values[index as usize] = Some(value);
    Ok(())
}

pub fn kernel_get_properties(kernel: KernelHandle, properties: Pointer<KernelProperties>) -> Outcome {
    let kernel = kernel.get()?;
    let compiled = kernel.compiled.lock();
    let bytes = |query| compiled.numbers(query).first().map_or(0, |&bytes| bytes as u32);
    let [x, y, z] = Kernel::required_group(&compiled);
    let group = if x > 0 { [x, y, z].map(|size| size as usize) } else { [device::limits().group_size as usize, 1, 1] };
    let subgroup = compiled.subgroup_size(group).unwrap_or(1).max(1) as u32;
    let answer = KernelProperties {
        num_kernel_args: kernel.signature.parameters.len() as u32,
        required_group_size_x: x,
        required_group_size_y: y,
        required_group_size_z: z,
        max_subgroup_size: subgroup,
        max_num_subgroups: (group.iter().product::<usize>() as u32).div_ceil(subgroup),
        local_mem_size: bytes(KernelQuery::LocalMemory),
        private_mem_size: bytes(KernelQuery::PrivateMemory),
        spill_mem_size: bytes(KernelQuery::SpilledMemory),
        next: properties.read()?.next,
        ..KernelProperties::default()
    };
    properties.write(answer)
}

pub fn kernel_set_indirect_access(kernel: KernelHandle, _flags: KernelIndirectAccessFlags) -> Outcome {
    kernel.get().map(drop)
}
