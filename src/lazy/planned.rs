//! [`PlannedLaunch`]: a launch that an operation has prepared for all calls with the same shapes.

use super::allocate;
use super::epilogue::{Epilogue, Produced, Producer};
use super::pending::PendingLaunch;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::plan_cache::Plan;
use crate::engine::pool::Buffer;
use crate::kernels::epilogue::Finishing;
use crate::kernels::parameters::Form;
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// Sets the parameters that differ from run to run, each to the next number.
pub(crate) type SetNumbers<F> = fn(&mut <F as Form>::Host, &mut dyn FnMut() -> u32);

/// A launch that runs many times, each time with other inputs and other numbers among its parameters.
pub(crate) struct PlannedLaunch<F: Finishing> {
    kernel: F,
    parameters: F::Host,
    set: SetNumbers<F>,
    groups: usize,
    pub shape: Shape,
    pub dtype: DType,
    /// Without an epilogue. It is made when it is needed, as it needs the kernel.
    plan: OnceLock<Plan<F>>,
}

impl<F: Finishing> PlannedLaunch<F>
where
    F::Host: Clone,
{
    /// Plans a launch without its inputs. `set` tells which parameters differ from run to run.
    pub fn new(launch: &PendingLaunch<F>, set: SetNumbers<F>) -> PlannedLaunch<F> {
        let PendingLaunch { kernel, parameters, groups, shape, dtype, .. } = launch;
        let (kernel, parameters, shape) = (kernel.clone(), parameters.clone(), shape.clone());
        PlannedLaunch { kernel, parameters, set, groups: *groups, shape, dtype: *dtype, plan: OnceLock::new() }
    }

    fn plan(&self, device: &Device) -> Result<&Plan<F>> {
        if let Some(plan) = self.plan.get() {
            return Ok(plan);
        }
        let (kernel, parameters) = (self.kernel.clone(), self.parameters.clone());
        let plan = device.runtime().plan(kernel, parameters, self.groups, &self.set)?;
        Ok(self.plan.get_or_init(|| plan))
    }
}

/// A run of a planned launch that waits for the expression over its results.
pub(crate) struct PlannedRun<F: Finishing> {
    pub launch: Arc<PlannedLaunch<F>>,
    /// Those that differ from run to run.
    pub numbers: SmallVec<[u32; 8]>,
    pub inputs: SmallVec<[Buffer; 4]>,
    pub device: Device,
    pub op: &'static str,
}

impl<F: Finishing + Send + Sync> Producer for PlannedRun<F>
where
    F::Host: Clone + Send + Sync,
{
    fn accumulator(&self) -> DType {
        self.launch.dtype.widened()
    }

    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced> {
        let PlannedRun { launch, numbers, inputs, device, op } = self;
        let PlannedLaunch { kernel, parameters, set, groups, shape, dtype, .. } = &**launch;
        if epilogue.is_some() || kernel.stored() != *dtype || kernel.shared(*groups).is_some() {
            let mut parameters = parameters.clone();
            let mut rest = numbers.iter().copied();
            set(&mut parameters, &mut || rest.next().unwrap_or_default());
            let (kernel, shape, device) = (kernel.clone(), shape.clone(), device.clone());
            let inputs = inputs.iter().cloned().collect();
            let (groups, dtype) = (*groups, *dtype);
            return PendingLaunch { kernel, parameters, groups, inputs, shape, dtype, device, op }.produce(epilogue);
        }
        let result = allocate(shape, *dtype, device, op)?;
        let mut buffers: SmallVec<[&Buffer; 8]> = SmallVec::new();
        inputs.iter().for_each(|input| buffers.push(input));
        buffers.push(&result);
        device.runtime().run_plan(launch.plan(device)?, &buffers, numbers.iter().copied())?;
        drop(buffers);
        Ok(Produced::Finished { result, kept: SmallVec::new() })
    }
}
