//! [`Device`]: the public handle of an open device.

mod filter;
mod open;

pub use filter::DeviceFilter;
pub use open::open_tuned;

use crate::backend::info::DeviceInfo;
use crate::base::error::Result;
use crate::base::precision::Precision;
use crate::engine::pool::MemoryStats;
use crate::engine::profile::Profile;
use crate::engine::runtime::{Runtime, Stats};
use crate::kernels::parameters::Form;
use crate::tuning::Tuning;
use std::fmt;
use std::sync::Arc;

/// A place where tensors live and kernels run. Cloning is cheap; a device may be used from many threads at once, and
/// runs their work in the order in which it was recorded.
///
/// Opening the same device again gives the same device. Tensors keep their device open. When the last of its tensors and
/// handles is dropped, its buffers and kernels are freed. What Vulkan or WebGPU has opened stays with the process for the
/// next opening, without them.
///
/// # When a call waits
/// Operations record work and return. These calls wait:
///
/// | call | what it waits for |
/// |---|---|
/// | `to_vec`, `to_scalar`, `println!("{tensor}")`, writing a file | the work that computes these elements |
/// | `to_device` to another device | the same, and then copies them through host memory |
/// | `nonzero`, `masked_select` | the number of elements found |
/// | [`synchronize`](Device::synchronize), [`trim`](Device::trim), [`profile`](Device::profile) | all recorded work |
/// | dropping the last handle or tensor of a device | all recorded work |
/// | any operation, if more than 16 batches of work have not completed | the oldest of them |
/// | any operation that needs a new buffer, if dropped tensors that wait for the device hold too much memory | the oldest batches |
/// | any operation, if memory has run out | all recorded work; then it frees the cached memory and tries once more |
/// | the first use of a kernel, building a [`Kernel`](crate::Kernel) | its compilation; other threads that need it wait, too |
/// | the first use of a kernel on matrix units | a product of known numbers that it has to get right |
/// | opening a device, [`list`](Device::list) | loading and asking the drivers |
///
/// An upload copies its bytes before it returns, but does not wait for the device. On WebGPU over Mesa's software
/// driver lavapipe, a call that submits a batch also waits for the batch before. The calls whose names end in `_async`
/// wait only for what any operation may wait for.
///
/// # After a fork
/// A device does not survive `fork`: to the child process, the devices of its parent are lost
/// ([`Error::DeviceLost`](crate::Error::DeviceLost)), and it may drop them and their tensors at no risk. Through Vulkan
/// and WebGPU it may open devices of its own, if the driver allows that: Mesa's software driver does, NVIDIA's driver does
/// not. Level Zero is not available to the child of a process that has used it. It is best to fork before the first device is opened. Do not fork while another thread
/// uses a device: what that thread has locked stays locked in the child.
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
pub struct Device(Arc<Runtime>);

impl Device {
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.0
    }

    /// How work is cut on it.
    pub(crate) fn tuning(&self) -> &'static Tuning {
        self.runtime().tuning()
    }

    /// Whether a kernel's parameter block fits.
    pub(crate) fn takes(&self, kernel: &impl Form) -> bool {
        kernel.parameter_words() <= self.info().limits.max_parameter_words as usize
    }

    /// What the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        self.runtime().info()
    }

    /// The device string that opens this device: `vulkan:0`.
    pub fn id(&self) -> String {
        self.info().id()
    }

    /// Blocks until all work recorded so far has run. Tensors that nobody has asked for yet are not computed by this:
    /// see [`Tensor::eval`](crate::Tensor::eval).
    ///
    /// # Errors
    /// Whatever went wrong on the device since the last time.
    pub fn synchronize(&self) -> Result<()> {
        self.runtime().synchronize()
    }

    /// How much device memory there is in use.
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

    /// Runs `work` and tells when each of its commands ran on the device: kernels, copies, uploads and reads. Blocks
    /// until they have run. The commands of other threads that use the device meanwhile are told of as well; tensors
    /// that are not asked for are not computed: see [`Tensor::eval`](crate::Tensor::eval).
    ///
    /// While it runs, commands do not overlap each other, so that their times are their own. At all other times nothing
    /// is measured.
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
    /// [`Error::Unsupported`](crate::Error::Unsupported) without [`Features::timestamps`](crate::Features::timestamps); whatever went wrong on the
    /// device; [`Error::InvalidArgument`](crate::Error::InvalidArgument) inside of another profile.
    pub fn profile<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Profile)> {
        self.runtime().profile(work)
    }

    /// Counters of what the device was asked to do.
    pub fn stats(&self) -> Stats {
        self.runtime().stats()
    }

    /// Returns the memory that no tensor uses to the driver. Waits for the device. Returns the number of bytes.
    ///
    /// # Errors
    /// Whatever went wrong on the device since the last time.
    pub fn trim(&self) -> Result<u64> {
        self.runtime().trim()
    }

    /// Allows products of `f32` to be less exact, for the sake of speed, from now on: see [`Precision`].
    ///
    /// ```
    /// # use marquetry::{Device, Precision, Tensor};
    /// # let device = Device::best()?;
    /// assert_eq!(device.precision(), Precision::Highest);
    /// device.set_precision(Precision::High);
    /// let x = Tensor::rand(0f32, 1.0, (64, 64), &device)?;
    /// let y = x.matmul(&x)?; // on matrix units where there are some, within 2^-16
    /// # y.eval()?;
    /// # device.set_precision(Precision::Highest);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn set_precision(&self, precision: Precision) {
        self.runtime().set_precision(precision);
    }

    /// How exact products of `f32` are at least.
    pub fn precision(&self) -> Precision {
        self.runtime().precision()
    }

    /// Starts the sequence of random numbers of this device anew. A device opens with seed 0.
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
