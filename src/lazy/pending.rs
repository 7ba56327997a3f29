//! [`PendingLaunch`]: a kernel that waits for the expression over its results.

use super::epilogue::{Epilogue, NORM_BUFFERS, Produced, Producer};
use super::expression::ExpressionBuilder;
use super::view::View;
use super::{allocate, shared_buffers};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::kernels::epilogue::Finishing;
use smallvec::SmallVec;

/// A launch that has not run. Its kernel stores its results in row-major order.
pub(crate) struct PendingLaunch<F: Finishing> {
    pub kernel: F,
    pub parameters: F::Host,
    /// The number of workgroups.
    pub groups: usize,
    pub inputs: SmallVec<[Buffer; 3]>,
    pub shape: Shape,
    /// The dtype of the results, which the kernel may store wider.
    pub dtype: DType,
    pub device: Device,
    pub op: &'static str,
}

impl<F: Finishing + Send + Sync> Producer for PendingLaunch<F>
where
    F::Host: Clone + Send + Sync,
{
    fn accumulator(&self) -> DType {
        self.dtype.widened()
    }

    fn produce(&self, epilogue: Option<&Epilogue>) -> Result<Produced> {
        let PendingLaunch { kernel, parameters, groups, inputs, shape, dtype, device, op } = self;
        let (fours, others) = (kernel.width() == 4, shared_buffers(kernel, *groups, device, op)?);
        if let Some(epilogue) = epilogue
            && kernel.computes()
            && let Some((config, at)) = epilogue.plan(kernel.columns(parameters), fours)
        {
            let (kernel, parameters) = (kernel.with_epilogue(config.into()), F::finished(parameters, at));
            let fits = |kernel: &F, parameters: &F::Host, others: usize| {
                epilogue.fits(kernel, inputs.len() + 1 + others, |dtype| kernel.stores(dtype, parameters), device)
            };
            let run = |kernel: F, parameters: F::Host, others: &[Buffer]| {
                epilogue.run(inputs, others, (device, op), |buffers| {
                    device.runtime().run(Launch { kernel, buffers, parameters, groups: *groups })
                })
            };
            if let Some(norm) = epilogue.norm.filter(|_| others.is_empty())
                && let Some((kernel, parameters)) = norm.kernel(&kernel, &parameters)
                && fits(&kernel, &parameters, NORM_BUFFERS)
            {
                return run(kernel, parameters, &norm.buffers(epilogue, (device, op))?);
            }
            if fits(&kernel, &parameters, others.len()) {
                return run(kernel, parameters, &others);
            }
        }
        let stored = kernel.stored();
        let output = allocate(shape, stored, device, op)?;
        let buffers: Vec<&Buffer> = inputs.iter().chain([&output]).chain(&others).collect();
        let alone = kernel.alone(parameters);
        let (kernel, parameters, groups) = alone.unwrap_or_else(|| (kernel.clone(), parameters.clone(), *groups));
        device.runtime().run(Launch { kernel, buffers: &buffers, parameters, groups })?;
        if stored == *dtype && epilogue.is_none() {
            return Ok(Produced::Finished { result: output, kept: SmallVec::new() });
        }
        let stored = View::of_buffer(output, shape.clone(), stored, device);
        let mut builder = ExpressionBuilder::like(&stored);
        let element = builder.tensor(&stored, op)?;
        let element = builder.cast(*dtype, element);
        builder.finish(element, op).map(Produced::Unfinished)
    }
}
