//! [`Step`]: work that is recorded once and runs any number of times.

use crate::backend::contract::BufferId;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::lock::Mutex;
use crate::base::shape::{Shape, checked_elements};
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::capture::Capture;
use crate::engine::launch::Launch;
use crate::engine::pool::Buffer;
use crate::engine::program::Program;
use crate::kernels::store::{MOST_QUADS, Parameters, Store};
use crate::lazy::{Transfer, View, allocate};
use crate::ops::TensorOrScalar;
use crate::tensor::Tensor;
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
    generator: Arc<Buffer>,
    device: Device,
    /// Held while a run is recorded, so that the commands of two runs do not mix.
    recording: Mutex<()>,
}

/// A named tensor of a step.
struct Argument {
    name: String,
    view: View,
    /// The quad of a scalar in its block of scalars.
    quad: Option<usize>,
}

/// Declares the inputs and states of a [`Step`]: what the closure of [`Device::capture`] gets.
pub struct Arguments<'a> {
    device: &'a Device,
    capture: &'a Capture,
    inputs: Vec<Argument>,
    states: Vec<Argument>,
    updates: Vec<(usize, Tensor)>,
    /// The newest block of scalars, and how many quads of it are taken.
    block: Arc<Buffer>,
    quads: usize,
}

/// The outputs of a run of a [`Step`].
#[derive(Clone)]
pub struct Outputs {
    names: Arc<[String]>,
    tensors: Vec<Tensor>,
}

impl Device {
    /// Records the work of a closure, to run it any number of times: a step of a model, for example. Only uploads run
    /// now, first values of states, and pending tensors from outside.
    ///
    /// The closure declares its inputs by name, with shape and dtype. It returns its outputs, each with a name. It is
    /// called once, or again if a kernel has failed its self-test. What it decides on the host is the same in each run.
    ///
    /// Numbers that change from run to run are inputs of shape `[]`. [`run`](Step::run) takes plain numbers for them,
    /// or tensors that other work has computed. Tensors from outside are constants: each run sees the elements that
    /// they have now. Random numbers are drawn anew in each run, as if the closure were called again. But
    /// [`set_seed`](Device::set_seed) acts only now.
    ///
    /// Kernels are compiled now, on all cores. Only what this thread launches on this device is captured.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let weight = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// let step = device.capture(|args| {
    ///     let x = args.input("x", (1, 2), DType::F32)?;
    ///     let scale = args.input("scale", (), DType::F32)?;
    ///     Ok([("y", x.matmul(&weight)?.mul(&scale)?)])
    /// })?;
    /// let x = Tensor::new([[1f32, 1.0]], &device)?;
    /// let y = step.run([("x", (&x).into()), ("scale", 10.into())])?;
    /// assert_eq!(y.get("y")?.to_vec::<f32>()?, [40.0, 60.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for what cannot be captured: a call that reads elements or waits for the device
    ///   (see [When a call waits](Device#when-a-call-waits)), or a capture inside a capture. Also for a name that is
    ///   used twice, and for a state that is changed but not [updated](Arguments::update).
    /// - [`Error::DeviceMismatch`] for an output on another device
    /// - any error of the closure
    pub fn capture<N, O>(&self, mut work: impl FnMut(&mut Arguments<'_>) -> Result<O>) -> Result<Step>
    where
        N: Into<String>,
        O: IntoIterator<Item = (N, Tensor)>,
    {
        let block_bytes = (BLOCK_QUADS * QUAD_BYTES) as u64;
        let (parts, program, draws) = self.runtime().capture(block_bytes, |capture| {
            let mut arguments = Arguments {
                device: self,
                capture,
                inputs: Vec::new(),
                states: Vec::new(),
                updates: Vec::new(),
                block: capture.generator().clone(),
                quads: 1,
            };
            let outputs = work(&mut arguments)?;
            let outputs = arguments.outputs(outputs)?;
            arguments.write_updates()?;
            Ok((arguments.inputs, arguments.states, outputs, capture.generator().clone()))
        })?;
        let (inputs, states, outputs, generator) = parts;
        let (program, device) = (Arc::new(program), self.clone());
        let output_names = outputs.iter().map(|output| output.name.clone()).collect();
        let recording = Mutex::new(());
        let step = Step { program, inputs, states, outputs, output_names, draws, generator, device, recording };
        step.compile_runs()?;
        Ok(step)
    }
}

impl Device {
    /// Compiles what a closure needs, on all cores, and tests the kernels that have to be. What the closure launches on
    /// this device is dropped, and the tensors that it returns are not computed. Only uploads run, and pending tensors
    /// from outside. Later, the same work starts at once.
    ///
    /// `progress` is called after each compilation, with the number of kernels that have been compiled and of all. The
    /// closure is called once, or again if a kernel has failed its self-test. It takes as much memory as its work. It
    /// must not keep tensors for later, such as a table that is computed at first use: they are never computed.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::rand(0f32, 1.0, (4, 64), &device)?;
    /// let model = |x: &Tensor| x.matmul(&x.t()?)?.softmax(-1)?.log();
    /// device.warm_up(|| Ok([model(&x)?]), |done, all| println!("{done} of {all} kernels"))?;
    /// let before = device.stats().compiles;
    /// model(&x)?.realize()?;
    /// assert_eq!(device.stats().compiles, before);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for calls that read elements or wait for the device, and inside a capture; any error
    /// of the closure.
    pub fn warm_up<O>(&self, mut work: impl FnMut() -> Result<O>, progress: impl FnMut(usize, usize)) -> Result<()>
    where
        O: IntoIterator<Item = Tensor>,
    {
        let work = |_: &Capture| work()?.into_iter().try_for_each(|tensor| tensor.realize());
        self.runtime().warm_up(work, progress)
    }
}

impl Arguments<'_> {
    /// Declares an input, and returns a tensor that stands for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if another argument has this name; [`Error::SizeOverflow`], [`Error::OutOfMemory`].
    pub fn input(&mut self, name: impl Into<String>, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let (name, shape) = (self.new_name(name)?, shape.into());
        let scalar = shape.rank() == 0;
        let buffer = if scalar { self.next_quad()? } else { self.allocate(&shape, dtype)? };
        let quad = scalar.then(|| self.quads - 1);
        let offset = quad.map_or(0, |quad| quad * QUAD_BYTES / dtype.size_in_bytes());
        let layout = Layout { offset, ..Layout::contiguous(shape.clone()) };
        let view = |buffer| View::of_buffer(buffer, shape.clone(), dtype, self.device).with_layout(layout.clone());
        let tensor = view(buffer.share());
        self.inputs.push(Argument { name, view: view(buffer), quad });
        Ok(tensor.into())
    }

    /// Declares a state: a tensor that each run takes over from the run before, such as a cache. Returns a tensor that
    /// stands for it. The first run finds a copy of `initial`.
    ///
    /// The closure hands the new value to [`update`](Self::update). It costs nothing if it was made from this tensor in
    /// place, by [`slice_assign`](Tensor::slice_assign) for example. Else it is copied.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let step = device.capture(|args| {
    ///     let x = args.input("x", 2, DType::F32)?;
    ///     let sum = args.state("sum", &Tensor::zeros(2, DType::F32, &device)?)?;
    ///     let sum = sum.add(&x)?;
    ///     args.update("sum", sum.clone())?;
    ///     Ok([("sum", sum)])
    /// })?;
    /// let x = Tensor::new([1f32, 2.0], &device)?;
    /// step.run([("x", (&x).into())])?;
    /// let sum = step.run([("x", (&x).into())])?;
    /// assert_eq!(sum.get("sum")?.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`input`](Self::input); [`Error::DeviceMismatch`]; [`Error::InvalidArgument`] if `initial` is computed inside
    /// the capture.
    pub fn state(&mut self, name: impl Into<String>, initial: &Tensor) -> Result<Tensor> {
        let name = self.new_name(name)?;
        self.check_device(initial, "state")?;
        let (shape, dtype) = (initial.shape().clone(), initial.dtype());
        let buffer = self.allocate(&shape, dtype)?;
        let view = |buffer| View::of_buffer(buffer, shape.clone(), dtype, self.device);
        let tensor = view(buffer.share());
        let state = Argument { name: name.clone(), view: view(buffer), quad: None };
        let runtime = self.device.runtime();
        runtime.suspend_capture(|| initial.buffer().and_then(|buffer| runtime.check_owners(&[buffer]))).map_err(
            |_| {
                let message = format!("the first value of `{name}` is computed inside the capture; compute it before");
                Error::InvalidArgument { op: "state", message }
            },
        )?;
        runtime.run_meanwhile(self.capture, || state.set(initial))?;
        self.capture.add_state(state.view.buffer()?);
        self.states.push(state);
        Ok(tensor.into())
    }

    /// Makes a tensor the value of a state after each run.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown name, another shape or dtype, or a second update;
    /// [`Error::DeviceMismatch`].
    pub fn update(&mut self, name: &str, value: Tensor) -> Result<()> {
        const OP: &str = "update";
        let place = position(&self.states, name, "state", OP)?;
        self.states[place].check(&value, "state", OP)?;
        self.check_device(&value, OP)?;
        if self.updates.iter().any(|(updated, _)| *updated == place) {
            let message = format!("the state `{name}` is updated twice; update it once, with its last value");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        self.updates.push((place, value));
        Ok(())
    }

    fn new_name(&self, name: impl Into<String>) -> Result<String> {
        let name = name.into();
        check_new(self.inputs.iter().chain(&self.states), &name)?;
        Ok(name)
    }

    fn check_device(&self, tensor: &Tensor, op: &'static str) -> Result<()> {
        if tensor.device() == self.device {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.device.to_string(), rhs: tensor.device().to_string() })
    }

    fn allocate(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        let bytes = checked_elements(shape, CAPTURE)? as u64 * dtype.size_in_bytes() as u64;
        self.device.runtime().allocate_argument(self.capture, bytes)
    }

    /// Takes the next quad of the scalars. Returns its block.
    fn next_quad(&mut self) -> Result<Buffer> {
        if self.quads == BLOCK_QUADS {
            let bytes = (BLOCK_QUADS * QUAD_BYTES) as u64;
            self.block = Arc::new(self.device.runtime().allocate_argument(self.capture, bytes)?);
            self.quads = 0;
        }
        self.quads += 1;
        Ok(self.block.share())
    }

    /// Returns the state whose memory a tensor shows.
    fn state_of(&self, tensor: &Tensor) -> Result<Option<usize>> {
        let id = tensor.buffer()?.allocation().id();
        let is_of = |state: &Argument| state.id().is_ok_and(|known| known == id);
        Ok(self.states.iter().position(is_of))
    }

    /// Computes what the closure has returned.
    fn outputs<N: Into<String>>(&self, tensors: impl IntoIterator<Item = (N, Tensor)>) -> Result<Vec<Argument>> {
        let mut outputs: Vec<Argument> = Vec::new();
        for (name, tensor) in tensors {
            let name = name.into();
            check_new(&outputs, &name)?;
            self.check_device(&tensor, CAPTURE)?;
            // An update may overwrite a state before the output is copied.
            let tensor = if self.state_of(&tensor)?.is_some() { tensor.copied()? } else { tensor };
            self.device.runtime().check_owners(&[tensor.buffer()?])?;
            outputs.push(Argument { name, view: tensor.into(), quad: None });
        }
        Ok(outputs)
    }

    /// Writes the new values of states, unless they are there already.
    fn write_updates(&mut self) -> Result<()> {
        let updated: Vec<usize> = self.updates.iter().map(|(place, _)| *place).collect();
        self.check_updated(&updated)?;
        let mut updates = Vec::new();
        for (place, value) in std::mem::take(&mut self.updates) {
            let value = match self.state_of(&value)? {
                Some(state) if state == place && value.layout() == self.states[place].view.layout() => continue,
                // Its memory may get another value before this one is read.
                Some(_) => value.copied()?,
                None => value,
            };
            value.realize()?;
            updates.push((place, value));
        }
        for (place, value) in &updates {
            self.states[*place].set(value)?;
        }
        Ok(())
    }

    /// Fails if a state is changed whose new value was not handed over.
    fn check_updated(&self, updated: &[usize]) -> Result<()> {
        for (place, state) in self.states.iter().enumerate() {
            if self.capture.changes(state.view.buffer()?) && !updated.contains(&place) {
                let message = format!(
                    "the state `{0}` is changed in place; hand its new value over: `args.update(\"{0}\", value)`",
                    state.name
                );
                return Err(Error::InvalidArgument { op: CAPTURE, message });
            }
        }
        Ok(())
    }
}

impl Argument {
    fn id(&self) -> Result<BufferId> {
        Ok(self.view.buffer()?.allocation().id())
    }

    /// Fails if a tensor cannot be the value of this argument.
    fn check(&self, value: &Tensor, what: &str, op: &'static str) -> Result<()> {
        let View { dtype, .. } = self.view;
        if value.shape() == self.view.shape() && value.dtype() == dtype {
            return Ok(());
        }
        let (name, shape) = (&self.name, self.view.shape());
        let (got, of) = (value.dtype(), value.shape());
        let message = format!("the {what} `{name}` is {dtype} of shape {shape}, got {got} of shape {of}");
        Err(Error::InvalidArgument { op, message })
    }

    /// Copies a tensor's elements to the argument's memory.
    fn set(&self, value: &Tensor) -> Result<()> {
        copy(value.as_ref(), self.view.layout(), self.view.buffer()?)
    }

    /// Returns a new tensor of the elements that the argument has now.
    fn get(&self, buffer: Buffer) -> Result<Tensor> {
        let shape = self.view.shape();
        copy(&self.view, &Layout::contiguous(shape.clone()), &buffer)?;
        Ok(Tensor::from_buffer(buffer, shape.clone(), self.view.dtype, self.view.device()))
    }
}

fn copy(from: &View, to: &Layout, buffer: &Buffer) -> Result<()> {
    if from.elem_count() == 0 {
        return Ok(());
    }
    let transfer = Transfer::new(from.layout(), to, from.dtype.size_in_bytes());
    transfer.run(from.buffer()?, buffer, from.device())
}

impl Step {
    /// Queues a run. Each input is named, and gets a tensor of its shape and dtype, or a number if its shape is `[]`.
    ///
    /// The outputs are new tensors. Like every operation, this returns before they are computed.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if an input is missing, unknown, given twice, or of another shape or dtype; also
    ///   inside a capture
    /// - [`Error::DeviceMismatch`], [`Error::OutOfMemory`]; what any operation may return
    ///
    /// After an error nothing is queued, and no state changes. If a submission fails, the run stays queued, and the
    /// next call that submits returns the error.
    pub fn run<'a>(&self, inputs: impl IntoIterator<Item = (&'a str, TensorOrScalar<'a>)>) -> Result<Outputs> {
        let runtime = self.device.runtime();
        runtime.refuse_capture(RUN, "it runs a step")?;
        let inputs = self.given(inputs)?;
        let outputs = self.outputs.iter().map(|output| self.allocate(output)).collect::<Result<Vec<_>>>()?;
        let _recording = self.recording.lock();
        let random = (self.draws > 0).then(|| runtime.next_random(self.draws));
        runtime.record_run(&self.program, || {
            self.set_inputs(&inputs, random)?;
            runtime.run_program(&self.program);
            self.get_outputs(outputs)
        })
    }

    /// Compiles the kernels that runs launch beside the program.
    fn compile_runs(&self) -> Result<()> {
        let runtime = self.device.runtime();
        // Nothing is copied, so the step's own buffers stand for those of a run.
        let own = |arguments: &[Argument]| -> Result<Vec<Buffer>> {
            arguments.iter().map(|argument| argument.view.buffer().map(|buffer| buffer.share())).collect()
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
        self.check_device(value, OP)?;
        runtime.check_owners(&[value.buffer()?])?;
        let _recording = self.recording.lock();
        runtime.with_buffers_of(&self.program, || state.set(value))
    }

    fn check_device(&self, tensor: &Tensor, op: &'static str) -> Result<()> {
        if *tensor.device() == self.device {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.device.to_string(), rhs: tensor.device().to_string() })
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
                    self.check_device(tensor, RUN)?;
                    self.device.runtime().check_owners(&[tensor.buffer()?])?;
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

impl Outputs {
    /// Returns an output by its name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no output has this name.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let place = self.names.iter().position(|known| known == name);
        place.map(|place| &self.tensors[place]).ok_or_else(|| {
            let message = format!("there is no output `{name}`; the step has {self}");
            Error::InvalidArgument { op: "get", message }
        })
    }

    /// Returns the outputs in the order in which the closure returned them.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }
}

/// Finds an argument by its name.
fn position(arguments: &[Argument], name: &str, what: &str, op: &'static str) -> Result<usize> {
    arguments.iter().position(|argument| argument.name == name).ok_or_else(|| {
        let message = format!("there is no {what} `{name}`; the step has {}", Names(arguments));
        Error::InvalidArgument { op, message }
    })
}

fn check_new<'a>(arguments: impl IntoIterator<Item = &'a Argument>, name: &str) -> Result<()> {
    if arguments.into_iter().all(|argument| argument.name != name) {
        return Ok(());
    }
    let message = format!("two arguments are named `{name}`; give each a name of its own");
    Err(Error::InvalidArgument { op: CAPTURE, message })
}

/// Prints arguments: `x: f32 [1, 2], scale: f32 []`.
struct Names<'a>(&'a [Argument]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.iter().map(|Argument { name, view, .. }| (&**name, view.dtype, view.shape())))
    }
}

impl fmt::Display for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.names.iter().zip(&self.tensors);
        write_list(f, tensors.map(|(name, tensor)| (&**name, tensor.dtype(), tensor.shape())))
    }
}

fn write_list<'a>(
    f: &mut fmt::Formatter<'_>,
    tensors: impl ExactSizeIterator<Item = (&'a str, DType, &'a Shape)>,
) -> fmt::Result {
    if tensors.len() == 0 {
        return f.write_str("none");
    }
    for (place, (name, dtype, shape)) in tensors.enumerate() {
        let comma = if place > 0 { ", " } else { "" };
        write!(f, "{comma}`{name}` ({dtype} of shape {shape})")?;
    }
    Ok(())
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [inputs, states, outputs] = [&self.inputs[..], &self.states, &self.outputs].map(Names);
        write!(f, "Step(inputs: {inputs}; states: {states}; outputs: {outputs}; on {})", self.device.id())
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outputs({self})")
    }
}
