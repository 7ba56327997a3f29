//! Captures: how the work of a closure becomes a [`Step`], and the [`Arguments`] that the closure declares.

use super::argument::{Argument, check_device, check_new, position};
use super::{BLOCK_QUADS, CAPTURE, QUAD_BYTES, Step};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::lock::Mutex;
use crate::base::shape::{Shape, checked_elements};
use crate::device::Device;
use crate::engine::capture::Capture;
use crate::engine::pool::Buffer;
use crate::engine::program::Program;
use crate::lazy::View;
use crate::tensor::Tensor;
use std::sync::Arc;

/// The bytes of a block of scalars.
const BLOCK_BYTES: u64 = (BLOCK_QUADS * QUAD_BYTES) as u64;

/// Declares the inputs and states of a [`Step`]: what the closure of [`Device::capture`] gets.
pub struct Arguments<'a> {
    device: &'a Device,
    capture: &'a Capture,
    inputs: Vec<Argument>,
    states: Vec<Argument>,
    updates: Vec<(usize, Tensor)>,
    /// The newest block of scalars, and how many quads of it are taken.
    block: Buffer,
    quads: usize,
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
        self.step(self.runtime().capture(BLOCK_BYTES, |capture| Parts::of(self, capture, &mut work))?)
    }

    /// The same without blocking: kernels compile in other threads, or in a browser one by one, while the page goes on.
    ///
    /// Only while the closure runs is its work captured. Matrix units are tested as in [`capture`](Self::capture):
    /// such a test waits for the device. Browsers have none. The future is not `Send`: it stays in its thread.
    ///
    /// ```
    /// # use marquetry::{DType, Device};
    /// # let device = Device::best()?;
    /// # pollster::block_on(async {
    /// let step = device.capture_async(|args| Ok([("y", args.input("x", (), DType::F32)?.exp()?)])).await?;
    /// let y = step.run([("x", 0.into())])?;
    /// assert_eq!(y.get("y")?.to_scalar_async::<f32>().await?, 1.0);
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`capture`](Self::capture).
    pub async fn capture_async<N, O>(&self, mut work: impl FnMut(&mut Arguments<'_>) -> Result<O>) -> Result<Step>
    where
        N: Into<String>,
        O: IntoIterator<Item = (N, Tensor)>,
    {
        let captured = self.runtime().capture_async(BLOCK_BYTES, |capture| Parts::of(self, capture, &mut work)).await?;
        self.step(captured)
    }

    fn step(&self, (parts, program, draws): (Parts, Program, u32)) -> Result<Step> {
        let Parts { inputs, states, outputs, generator } = parts;
        let (program, device) = (Arc::new(program), self.clone());
        let output_names = outputs.iter().map(|output| output.name.clone()).collect();
        let recording = Mutex::new(());
        let step = Step { program, inputs, states, outputs, output_names, draws, generator, device, recording };
        step.compile_runs()?;
        Ok(step)
    }
}

/// What a closure has declared and returned.
struct Parts {
    inputs: Vec<Argument>,
    states: Vec<Argument>,
    outputs: Vec<Argument>,
    generator: Buffer,
}

impl Parts {
    /// Calls the closure, inside a capture.
    fn of<N, O>(
        device: &Device,
        capture: &Capture,
        work: &mut impl FnMut(&mut Arguments<'_>) -> Result<O>,
    ) -> Result<Parts>
    where
        N: Into<String>,
        O: IntoIterator<Item = (N, Tensor)>,
    {
        let generator = capture.generator().clone();
        let mut arguments = Arguments {
            device,
            capture,
            inputs: Vec::new(),
            states: Vec::new(),
            updates: Vec::new(),
            block: generator.clone(),
            quads: 1,
        };
        let outputs = work(&mut arguments)?;
        let outputs = arguments.outputs(outputs)?;
        arguments.write_updates()?;
        Ok(Parts { inputs: arguments.inputs, states: arguments.states, outputs, generator })
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

    /// The same without blocking: see [`capture_async`](Self::capture_async).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// # pollster::block_on(async {
    /// let x = Tensor::rand(0f32, 1.0, (4, 64), &device)?;
    /// device.warm_up_async(|| Ok([x.tan()?.sum(0)?]), |done, all| println!("{done} of {all} kernels")).await?;
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`warm_up`](Self::warm_up).
    pub async fn warm_up_async<O>(
        &self,
        mut work: impl FnMut() -> Result<O>,
        progress: impl FnMut(usize, usize),
    ) -> Result<()>
    where
        O: IntoIterator<Item = Tensor>,
    {
        let work = |_: &Capture| work()?.into_iter().try_for_each(|tensor| tensor.realize());
        self.runtime().warm_up_async(work, progress).await
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
        let tensor = view(buffer.clone());
        self.inputs.push(Argument::new(name, view(buffer), quad));
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
        check_device(initial, self.device, "state")?;
        let (shape, dtype) = (initial.shape().clone(), initial.dtype());
        let buffer = self.allocate(&shape, dtype)?;
        let view = |buffer| View::of_buffer(buffer, shape.clone(), dtype, self.device);
        let tensor = view(buffer.clone());
        let state = Argument::new(name.clone(), view(buffer), None);
        let runtime = self.device.runtime();
        runtime.suspend_capture(|| initial.buffer().and_then(|buffer| runtime.check_owner(buffer))).map_err(|_| {
            let message = format!("the first value of `{name}` is computed inside the capture; compute it before");
            Error::InvalidArgument { op: "state", message }
        })?;
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
        check_device(&value, self.device, OP)?;
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

    fn allocate(&self, shape: &Shape, dtype: DType) -> Result<Buffer> {
        let bytes = checked_elements(shape, CAPTURE)? as u64 * dtype.size_in_bytes() as u64;
        self.device.runtime().allocate_argument(self.capture, bytes)
    }

    /// Takes the next quad of the scalars. Returns its block.
    fn next_quad(&mut self) -> Result<Buffer> {
        if self.quads == BLOCK_QUADS {
            self.block = self.device.runtime().allocate_argument(self.capture, BLOCK_BYTES)?;
            self.quads = 0;
        }
        self.quads += 1;
        Ok(self.block.clone())
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
            check_device(&tensor, self.device, CAPTURE)?;
            // An update may overwrite a state before the output is copied.
            let tensor = if self.state_of(&tensor)?.is_some() { tensor.copied()? } else { tensor };
            self.device.runtime().check_owner(tensor.buffer()?)?;
            outputs.push(Argument::new(name, tensor.into(), None));
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
