//! [`Device`]: the public handle of an open device.

mod filter;
mod open;

pub use filter::DeviceFilter;
pub use open::open_tuned;

use crate::backend::info::DeviceInfo;
use crate::base::error::Result;
use crate::base::precision::Precision;
use crate::engine::explain::Explanation;
use crate::engine::pool::MemoryStats;
use crate::engine::profile::Profile;
use crate::engine::runtime::{Runtime, Stats};
use crate::kernels::parameters::Form;
use crate::tuning::Tuning;
use std::fmt;
use std::sync::Arc;

/// A place where tensors live and kernels run. Cloning is cheap. Many threads may use a device at once. The device runs
/// their work in the order in which it was recorded.
///
/// Opening a device that is open gives the same device. Tensors keep their device open. When the last tensor and handle
/// of a device is dropped, its buffers and kernels are freed. What Vulkan or WebGPU has opened stays with the process,
/// without buffers and kernels, for the next opening.
///
/// # When a call waits
/// Operations record work and return. These calls wait:
///
/// | call | what it waits for |
/// |---|---|
/// | `to_vec`, `read_into`, `to_scalar`, `println!("{tensor}")`, writing files | the work that computes the elements |
/// | `to_device` to another device | the same; then it copies them through host memory |
/// | `nonzero`, `masked_select` | the number of elements found |
/// | [`synchronize`](Device::synchronize), [`trim`](Device::trim), [`profile`](Device::profile) | all recorded work |
/// | dropping the last handle or tensor of a device | all recorded work |
/// | any operation, if more than 32 batches of work are in flight | the oldest of them |
/// | any operation that needs a new buffer, if dropped tensors in flight hold too much memory | the oldest batches |
/// | any operation, if memory has run out | all recorded work; then it frees the cached memory and tries once more |
/// | the first use of a kernel, building a [`Kernel`](crate::Kernel) | its compilation, in all threads that need it |
/// | [`capture`](Device::capture), [`warm_up`](Device::warm_up) | the compilation of all kernels; tests of kernels |
/// | the first use of a kernel on matrix units | a test: it has to compute a known product correctly |
/// | opening a device, [`list`](Device::list) | loading and asking the drivers |
///
/// An upload copies its bytes before it returns. It waits for the device only if 32 MiB or more of earlier uploads are
/// on their way. The calls whose names end in `_async` return futures instead, and block only where any
/// operation may. There are two exceptions: [`capture_async`](Device::capture_async) and
/// [`warm_up_async`](Device::warm_up_async) compile in other threads, but block for tests of kernels. Dropping the
/// future of [`profile_async`](Device::profile_async) before its end blocks for all recorded work.
///
/// # In a browser
/// Nothing may block in a browser, neither in a page nor in a worker. A call that would is an
/// [`Error::WouldBlock`](crate::Error::WouldBlock) that names its twin, such as `to_vec_async`. [`list`](Device::list)
/// logs the error, and returns no device. `trim`, and operations that would wait for the oldest work, do not wait
/// there.
///
/// A kernel compiles in the browser's own process when it is first launched.
/// [`warm_up_async`](Device::warm_up_async) lets the page go on between kernels. No thread is started. Devices and
/// tensors are `Send` there too, so that the same code compiles. But they belong to the page or worker that has opened
/// the device, and cannot be posted to another one.
///
/// # After a fork
/// A device does not survive `fork`. To the child process, its parent's devices are lost
/// ([`Error::DeviceLost`](crate::Error::DeviceLost)). The child may drop them and their tensors safely.
///
/// Through Vulkan and WebGPU, the child may open devices of its own if the driver allows that. Mesa's software driver
/// does, NVIDIA's driver does not. If a process has used Level Zero, its children cannot use it. It is best to fork
/// before the first device is opened. Do not fork while another thread uses a device: what that thread has locked stays
/// locked in the child.
///
/// ```
/// use marquetry::Device;
/// let device = Device::best()?;
/// println!("{device}");
/// for info in Device::list() {
///     println!("{} has {} bytes of memory", info.id(), info.memory);
/// }
/// # Ok::<(), marquetry::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Device {
    /// Reached through Vulkan.
    Vulkan(Handle),
    /// Reached through WebGPU.
    WebGpu(Handle),
    /// Reached through Level Zero.
    LevelZero(Handle),
}

/// An open device of any backend.
#[derive(Clone)]
pub struct Handle(Arc<Runtime>);

impl Device {
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        let (Device::Vulkan(handle) | Device::WebGpu(handle) | Device::LevelZero(handle)) = self;
        &handle.0
    }

    /// Returns a device over a backend that is only a model.
    #[cfg(all(test, model_locks))]
    pub(crate) fn of_model(backend: Box<dyn crate::backend::contract::Backend>) -> Device {
        Device::Vulkan(Handle(Arc::new(Runtime::new(backend))))
    }

    /// Returns how work is divided on this device.
    pub(crate) fn tuning(&self) -> &'static Tuning {
        self.runtime().tuning()
    }

    /// Returns the most invocations of a workgroup, as a power of two.
    pub(crate) fn largest_workgroup(&self) -> u32 {
        let limits = &self.info().limits;
        1 << limits.max_workgroup_invocations.min(limits.max_workgroup_size[0]).max(1).ilog2()
    }

    /// Returns the invocations of a workgroup of an elementwise operation.
    pub(crate) fn elementwise_workgroup(&self) -> u32 {
        self.tuning().workgroups.elementwise.min(self.largest_workgroup())
    }

    /// Returns whether a kernel's parameter block fits.
    pub(crate) fn takes(&self, kernel: &impl Form) -> bool {
        kernel.parameter_words() <= self.info().limits.max_parameter_words as usize
    }

    /// Describes what the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        self.runtime().info()
    }

    /// Returns the string that opens this device, such as `vulkan:0`.
    pub fn id(&self) -> String {
        self.info().id()
    }

    /// Blocks until all work recorded so far has run. This does not compute tensors that nobody has asked for: see
    /// [`Tensor::realize`](crate::Tensor::realize).
    ///
    /// # Errors
    /// Any failure on the device since the last such call.
    pub fn synchronize(&self) -> Result<()> {
        self.runtime().synchronize()
    }

    /// The same without blocking.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// # pollster::block_on(async {
    /// Tensor::rand(0f32, 1.0, (64, 64), &device)?.exp()?.realize()?;
    /// device.synchronize_async().await?;
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub async fn synchronize_async(&self) -> Result<()> {
        self.runtime().synchronize_async().await
    }

    /// Returns how much device memory is in use.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// let device = Device::best()?;
    /// let x = Tensor::new([1f32, 2.0], &device)?;
    /// assert!(device.memory_stats().in_use >= 8);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn memory_stats(&self) -> MemoryStats {
        self.runtime().memory_stats()
    }

    /// Runs `work`, and returns when each of its commands ran on the device: kernels, copies, uploads and reads. Blocks
    /// until they have run. The profile includes what other threads run on the device meanwhile. It does not compute
    /// tensors that nobody has asked for: see [`Tensor::realize`](crate::Tensor::realize).
    ///
    /// During a profile commands do not overlap, so their times are their own. Only uploads by a queue that only copies
    /// run beside kernels. At all other times nothing is measured.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::rand(0f32, 1.0, (64, 64), &device)?;
    /// let (y, profile) = device.profile(|| x.matmul(&x)?.to_vec::<f32>())?;
    /// assert_eq!(y?.len(), 64 * 64);
    /// println!("{profile}");
    /// let trace = profile.to_chrome_trace(); // for chrome://tracing or Perfetto
    /// # assert!(trace.contains("matmul"));
    /// # assert!(profile.device_time() > std::time::Duration::ZERO);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device lacks
    ///   [`Features::timestamps`](crate::Features::timestamps)
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) inside another profile
    /// - any failure on the device
    pub fn profile<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Profile)> {
        self.runtime().profile(work)
    }

    /// The same for work that does not block. Browsers have no [`timestamps`](crate::Features::timestamps).
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// # pollster::block_on(async {
    /// let x = Tensor::rand(0f32, 1.0, (64, 64), &device)?;
    /// let (y, profile) = device.profile_async(async { x.matmul(&x)?.to_vec_async::<f32>().await }).await?;
    /// assert_eq!(y?.len(), 64 * 64);
    /// println!("{profile}");
    /// # Ok::<(), marquetry::Error>(())
    /// # })?;
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`profile`](Self::profile).
    pub async fn profile_async<F: Future>(&self, work: F) -> Result<(F::Output, Profile)> {
        self.runtime().profile_async(work).await
    }

    /// Runs `work` and tells which kernels were launched meanwhile, by any thread: what was fused into each, which
    /// bytes it moves, and why other operations ran by themselves. A run of a [`Step`](crate::Step) launches all of its
    /// kernels. Only what `work` reads or
    /// [realizes](crate::Tensor::realize) is sure to run.
    ///
    /// ```standalone_crate
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// # let x = Tensor::ones((4, 8), DType::F32, &device)?;
    /// # x.realize()?;
    /// let (sums, explanation) = device.explain(|| x.sqr()?.sum(-1)?.to_vec::<f32>())?;
    /// assert_eq!(sums?, [8.0; 4]);
    /// assert_eq!(explanation.kernels.len(), 1);
    /// assert_eq!(explanation.kernels[0].bytes_written, 4 * 4);
    /// println!("{explanation}");
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) inside another explanation.
    pub fn explain<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Explanation)> {
        self.runtime().explain(work)
    }

    /// Returns counters of what the device was asked to do.
    pub fn stats(&self) -> Stats {
        self.runtime().stats()
    }

    /// Limits the bytes of device memory that buffers take, in use and cached; `None` removes the limit. Without one,
    /// the driver refuses what is too much, and other programs may feel it before.
    ///
    /// A request beyond the limit first frees cached memory, and waits for the work in flight. If that is not enough,
    /// it is [`Error::OutOfMemory`](crate::Error::OutOfMemory). Tensors that are there stay, also if they take more.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Error, Tensor};
    /// # let device = Device::best()?;
    /// device.set_memory_limit(device.memory_stats().in_use + (64 << 20));
    /// let large = Tensor::zeros(100 << 20, DType::U8, &device)?.realize();
    /// assert!(matches!(large, Err(Error::OutOfMemory { .. })));
    /// device.set_memory_limit(None);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_memory_limit(&self, bytes: impl Into<Option<u64>>) {
        self.runtime().set_memory_limit(bytes.into());
    }

    /// Gives the memory that no tensor uses back to the driver, and returns its size in bytes. Waits for the device.
    ///
    /// # Errors
    /// Any failure on the device since the last such call.
    pub fn trim(&self) -> Result<u64> {
        self.runtime().trim()
    }

    /// From now on, fuses operations (the default), or runs each by a kernel of its own at once: for measurements, and
    /// to find out which operation is wrong.
    ///
    /// ```standalone_crate
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// # let x = Tensor::ones(4, DType::F32, &device)?;
    /// device.set_fusion(false);
    /// let before = device.stats().launches;
    /// let y = x.add(1.0)?.tanh()?;
    /// assert_eq!(device.stats().launches - before, 2);
    /// # device.set_fusion(true);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn set_fusion(&self, fuses: bool) {
        self.runtime().set_fusion(fuses);
    }

    /// From now on, allows products of `f32` to be less exact in order to be faster: see [`Precision`].
    ///
    /// ```
    /// # use marquetry::{Device, Precision, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(device.precision(), Precision::Highest);
    /// device.set_precision(Precision::High);
    /// let x = Tensor::rand(0f32, 1.0, (64, 64), &device)?;
    /// let y = x.matmul(&x)?; // on matrix units where there are some, within 2^-16
    /// # y.realize()?;
    /// # device.set_precision(Precision::Highest);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn set_precision(&self, precision: Precision) {
        self.runtime().set_precision(precision);
    }

    /// Returns how exact products of `f32` are at least.
    pub fn precision(&self) -> Precision {
        self.runtime().precision()
    }

    /// Restarts the sequence of random numbers of this device. A device opens with seed 0.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// device.set_seed(7);
    /// let a = Tensor::rand(0f32, 1.0, 4, &device)?;
    /// device.set_seed(7);
    /// let b = Tensor::rand(0f32, 1.0, 4, &device)?;
    /// assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn set_seed(&self, seed: u64) {
        self.runtime().set_seed(seed);
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.runtime(), other.runtime())
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.info(), f)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.id())
    }
}
