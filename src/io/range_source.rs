//! [`RangeSource`]: where the bytes of a file come from if they come later.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;

/// What will be there later: the future of a [`RangeSource`]. Outside browsers, executors may move it between threads.
#[cfg(native)]
pub type Later<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// What will be there later: the future of a [`RangeSource`]. In a browser it stays in its page or worker.
#[cfg(not(native))]
pub type Later<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + 'a>>;

/// Whether a [`RangeSource`] may be used by several threads: always, but in a browser.
#[cfg(native)]
pub trait Shared: Send + Sync {}
#[cfg(native)]
impl<T: Send + Sync> Shared for T {}

/// Whether a [`RangeSource`] may be used by several threads. A browser has none.
#[cfg(not(native))]
pub trait Shared {}
#[cfg(not(native))]
impl<T> Shared for T {}

/// A file whose bytes come later, over the network for example. [`SafeTensors::open_async`](super::SafeTensors) and
/// [`Gguf::open_async`](super::Gguf) read it in parts, and never hold all of it in memory.
///
/// ```
/// use marquetry::io::{Later, RangeSource};
/// use std::ops::Range;
///
/// /// Bytes in memory, as if they came from elsewhere.
/// struct Elsewhere(Vec<u8>);
///
/// impl RangeSource for Elsewhere {
///     fn name(&self) -> String {
///         "elsewhere".into()
///     }
///
///     fn length(&self) -> Later<'_, u64> {
///         Box::pin(async { Ok(self.0.len() as u64) })
///     }
///
///     fn read(&self, range: Range<u64>) -> Later<'_, Vec<u8>> {
///         Box::pin(async move { Ok(self.0[range.start as usize..range.end as usize].to_vec()) })
///     }
/// }
/// # #[cfg(feature = "safetensors")] {
/// # use marquetry::{Device, Tensor, io::SafeTensors};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// # let device = Device::best()?;
/// # SafeTensors::save(&path, [("bias", &Tensor::new([1f32, 2.0], &device)?)])?;
/// # pollster::block_on(async {
/// let bytes = std::fs::read(path).unwrap();
/// let file = SafeTensors::open_async(Elsewhere(bytes)).await?;
/// let bias = file.load_async("bias", &device).await?;
/// assert_eq!(bias.to_vec_async::<f32>().await?, [1.0, 2.0]);
/// # Ok::<(), marquetry::Error>(())
/// # })?;
/// # }
/// # Ok::<(), marquetry::Error>(())
/// ```
pub trait RangeSource: Shared {
    /// Returns the file's name, for messages.
    fn name(&self) -> String;

    /// Returns the length of the file in bytes.
    fn length(&self) -> Later<'_, u64>;

    /// Returns the bytes of a range. The range lies within the length. Fewer or more bytes are an error of the file.
    fn read(&self, range: Range<u64>) -> Later<'_, Vec<u8>>;
}
