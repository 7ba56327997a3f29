//! [`Step`]: work that is recorded once and runs any number of times.

mod argument;
mod capture;
mod outputs;

pub use capture::Arguments;
pub use outputs::Outputs;

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::engine::program::Program;
use crate::kernels::store::{MOST_QUADS, Parameters, Store};
use crate::lazy::allocate;
use crate::ops::TensorOrScalar;
use crate::tensor::Tensor;
use argument::{Argument, Names, check_device, position};
use std::fmt;
use std::sync::Arc;

const CAPTURE: &str = "capture";
const RUN: &str = "run";

/// Scalars have a quad of words each, in blocks of this many quads. The first block begins with the generator of random
/// numbers.
const BLOCK_QUADS: usize = 64;
const QUAD_BYTES: usize = 16;

/// The work of a closure, recorded once by [`Device::capture`]. A run costs the host little, however many kernels it
/// has: it writes the inputs, submits what was recorded, and copies the outputs.
///
/// Runs are queued and execute in order, with all other work of the device. Each has its own inputs and outputs. A step
/// keeps its memory, and that of the tensors that the closure used, until it is dropped. It may be dropped while runs
/// are queued. States belong to one step: [`state`](Self::state) and [`set_state`](Self::set_state) copy them.
///
/// Through Vulkan and Level Zero, the commands are recorded by the driver once. WebGPU has no such commands: there, the
/// crate encodes them for each run, and saves only the work before.
pub struct Step {
    program: Arc<Program>,
    inputs: Vec<Argument>,
    states: Vec<Argument>,
    outputs: Vec<Argument>,
    output_names: Arc<[String]>,
    /// Tensors of random numbers in each run.
    draws: u32,
    generator: Buffer,
    device: Device,
    /// Held while a run is recorded, so that the commands of two runs do not mix.
    recording: Mutex<()>,
}

impl Step {
    /// Queues a run. Each input is named, and gets a tensor of its shape and dtype, or a number if its shape is `[]`.
    ///
    /// The outputs are new tensors. Like every operation, this returns before they are computed.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if an input is missing, unknown, given twice, or of another shape or dtype; if a
    ///   [`KvCache`](crate::nn::KvCache) expects other tokens; also inside a capture
    /// - [`Error::DeviceMismatch`], [`Error::OutOfMemory`]; what any operation may return
    ///
    /// After an error nothing is queued, and no state changes. If a submission fails, the run stays queued, and the
    /// next operation returns the error.
    pub fn run<'a>(&self, inputs: impl IntoIterator<Item = (&'a str, TensorOrScalar<'a>)>) -> Result<Outputs> {
        let runtime = self.device.runtime();
        runtime.refuse_capture(RUN, "it runs a step")?;
        let inputs = self.given(inputs)?;
        let outputs = self.outputs.iter().map(|output| self.allocate(output)).collect::<Result<Vec<_>>>()?;
        let _recording = self.recording.lock();
        let random = (self.draws > 0).then(|| runtime.next_random(self.draws));
        runtime.record_run(&self.program, || {
            let mut held = self.program.hold()?;
            self.set_inputs(&inputs, random)?;
            runtime.run_program(&self.program);
            held.iter_mut().for_each(|held| held.done());
            drop(held);
            self.get_outputs(outputs)
        })
    }

    /// Compiles the kernels that runs launch beside the program.
    fn compile_runs(&self) -> Result<()> {
        let runtime = self.device.runtime();
        // Nothing is copied, so the step's own buffers stand for those of a run.
        let own = |arguments: &[Argument]| -> Result<Vec<Buffer>> {
            arguments.iter().map(|argument| argument.view.buffer().cloned()).collect()
        };
        let outputs = own(&self.outputs)?;
        let tensors = self.inputs.iter().zip(own(&self.inputs)?).map(|(Argument { view, .. }, buffer)| {
            Tensor::from_buffer(buffer, view.shape().clone(), view.dtype, &self.device)
        });
        let tensors: Vec<Tensor> = tensors.collect();
        let values = self.inputs.iter().zip(&tensors).map(|(argument, tensor)| match argument.quad {
            Some(_) => Value::Number(Word::of_bits(0, argument.view.dtype)),
            None => Value::Tensor(tensor),
        });
        let values: Vec<Value<'_>> = values.collect();
        runtime.compile_for(&self.program, &self.generator, || {
            self.set_inputs(&values, (self.draws > 0).then_some([0; 3]))?;
            self.get_outputs(outputs).map(drop)
        })
    }

    /// Writes the inputs of the next run, and the key of its `random` numbers.
    fn set_inputs(&self, inputs: &[Value<'_>], random: Option<[u32; 3]>) -> Result<()> {
        self.store_numbers(inputs, random)?;
        for (argument, value) in self.inputs.iter().zip(inputs) {
            if let Value::Tensor(tensor) = value {
                argument.set(tensor)?;
            }
        }
        Ok(())
    }

    /// Copies the outputs to new tensors.
    fn get_outputs(&self, buffers: Vec<Buffer>) -> Result<Outputs> {
        let tensors = self.outputs.iter().zip(buffers).map(|(output, buffer)| output.get(buffer));
        Ok(Outputs { names: self.output_names.clone(), tensors: tensors.collect::<Result<_>>()? })
    }

    /// Returns a copy of what a state will be after all queued runs.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown name, or inside a capture; [`Error::OutOfMemory`].
    pub fn state(&self, name: &str) -> Result<Tensor> {
        const OP: &str = "state";
        let runtime = self.device.runtime();
        runtime.refuse_capture(OP, "it copies the state of a step")?;
        let state = &self.states[position(&self.states, name, "state", OP)?];
        let buffer = self.allocate(state)?;
        let _recording = self.recording.lock();
        runtime.with_buffers_of(&self.program, || state.get(buffer))
    }

    /// Gives a state another value, for the runs that are queued later: to begin anew, for example.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown name, another shape or dtype, or inside a capture;
    /// [`Error::DeviceMismatch`].
    pub fn set_state(&self, name: &str, value: &Tensor) -> Result<()> {
        const OP: &str = "set_state";
        let runtime = self.device.runtime();
        runtime.refuse_capture(OP, "it sets the state of a step")?;
        let state = &self.states[position(&self.states, name, "state", OP)?];
        state.check(value, "state", OP)?;
        check_device(value, &self.device, OP)?;
        runtime.check_owner(value.buffer()?)?;
        let _recording = self.recording.lock();
        runtime.with_buffers_of(&self.program, || state.set(value))
    }

    fn allocate(&self, argument: &Argument) -> Result<Buffer> {
        allocate(argument.view.shape(), argument.view.dtype, &self.device, RUN)
    }

    /// Checks the inputs, and returns them in their order.
    fn given<'a>(&self, inputs: impl IntoIterator<Item = (&'a str, TensorOrScalar<'a>)>) -> Result<Vec<Value<'a>>> {
        let mut values: Vec<Option<Value<'a>>> = self.inputs.iter().map(|_| None).collect();
        let mistake = |message| Err(Error::InvalidArgument { op: RUN, message });
        for (name, value) in inputs {
            let place = position(&self.inputs, name, "input", RUN)?;
            let argument = &self.inputs[place];
            let value = match value {
                TensorOrScalar::Tensor(tensor) => {
                    argument.check(tensor, "input", RUN)?;
                    check_device(tensor, &self.device, RUN)?;
                    self.device.runtime().check_owner(tensor.buffer()?)?;
                    Value::Tensor(tensor)
                }
                TensorOrScalar::Scalar(_) if argument.quad.is_none() => {
                    let shape = argument.view.shape();
                    return mistake(format!("the input `{name}` has shape {shape}, got a number; give a tensor"));
                }
                TensorOrScalar::Scalar(number) => Value::Number(Word::of(number, argument.view.dtype, RUN)?),
            };
            if values[place].replace(value).is_some() {
                return mistake(format!("the input `{name}` is given twice"));
            }
        }
        let missing = self.inputs.iter().zip(&values).find(|(_, value)| value.is_none());
        if let Some((Argument { name, view, .. }, _)) = missing {
            return mistake(format!("the input `{name}` is missing: {} of shape {}", view.dtype, view.shape()));
        }
        Ok(values.into_iter().flatten().collect())
    }

    /// Writes the numbers among the inputs, and the key of random numbers.
    fn store_numbers(&self, inputs: &[Value<'_>], random: Option<[u32; 3]>) -> Result<()> {
        let mut quads: Vec<(&Buffer, usize, [u32; 4])> = Vec::new();
        if let Some([low, high, first]) = random {
            quads.push((&self.generator, 0, [low, high, first, 0]));
        }
        for (argument, value) in self.inputs.iter().zip(inputs) {
            if let (Some(quad), Value::Number(number)) = (argument.quad, value) {
                let bits = number.stored_bits();
                quads.push((argument.view.buffer()?, quad, [bits as u32, (bits >> 32) as u32, 0, 0]));
            }
        }
        let follow = |&(a, i, _): &(&Buffer, usize, _), &(b, j, _): &(&Buffer, usize, _)| {
            a.allocation().id() == b.allocation().id() && i + 1 == j
        };
        for neighbours in quads.chunk_by(follow).flat_map(|quads| quads.chunks(MOST_QUADS)) {
            let [(buffer, first, _), ..] = neighbours else { continue };
            let words = neighbours.iter().flat_map(|(_, _, words)| words.iter().copied()).collect();
            let (kernel, parameters) = (Store { quads: neighbours.len() }, Parameters { first: *first, words });
            self.device.runtime().run(Launch { kernel, buffers: &[buffer], parameters, groups: 1 })?;
        }
        Ok(())
    }
}

/// What an input gets in a run.
enum Value<'a> {
    Tensor(&'a Tensor),
    Number(Word),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [inputs, states, outputs] = [&self.inputs[..], &self.states, &self.outputs].map(Names);
        write!(f, "Step(inputs: {inputs}; states: {states}; outputs: {outputs}; on {})", self.device.id())
    }
}
