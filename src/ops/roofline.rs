//! [`Device::roofline`]: how fast a device can be is measured.

use crate::backend::info::DeviceKind;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::device::Device;
use crate::engine::roofline::Roofline;
use crate::tensor::Tensor;
use std::time::Duration;

/// How often each kernel runs. The fastest run counts.
const ROUNDS: usize = 4;

/// A product that takes as long as this is large enough.
const LONG: Duration = Duration::from_millis(3);

impl Device {
    /// Measures how fast the device moves bytes and adds up products, at the first call. [`Profile`](crate::Profile)s
    /// tell from then on how near kernels come to that. Blocks for some milliseconds on a GPU, and longer if kernels
    /// are compiled. It needs up to 512 MiB of memory, which it gives back. Nobody else should use the device
    /// meanwhile.
    ///
    /// ```
    /// # use marquetry::{Device, Tensor};
    /// # let device = Device::best()?;
    /// let roofline = device.roofline()?;
    /// println!("{:.0} GB/s, {:.1} TFLOP/s", roofline.bandwidth / 1e9, 2.0 * roofline.products / 1e12);
    /// let x = Tensor::rand(0f32, 1.0, (64, 64), &device)?;
    /// let (_, profile) = device.profile(|| x.matmul(&x)?.realize())?;
    /// println!("{profile}"); // with a column `roof`
    /// # assert!(profile.to_string().contains("roof"));
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`profile`](Self::profile).
    pub fn roofline(&self) -> Result<Roofline> {
        self.runtime().roofline(|| {
            let bandwidth = self.bandwidth()?;
            let products = self.products(DType::F32)?;
            let has_units = self.info().features.matrix_units.f16.is_some();
            let matrix_products = if has_units { Some(self.products(DType::F16)?) } else { None };
            self.trim()?;
            Ok(Roofline { bandwidth, products, matrix_products })
        })
    }

    /// Returns how many bytes a kernel reads and writes per second.
    fn bandwidth(&self) -> Result<f64> {
        // More than the caches hold.
        let bytes = if self.info().kind == DeviceKind::Cpu { 64 << 20 } else { 256 << 20 };
        let count = bytes.min(self.info().limits.max_buffer_bytes / 2) as usize / DType::F32.size_in_bytes();
        let x = Tensor::rand(0f32, 1.0, count, self)?;
        x.realize()?;
        let time = self.fastest(|| (&x + 1.0)?.realize())?;
        Ok((2 * count * DType::F32.size_in_bytes()) as f64 / time.as_secs_f64())
    }

    /// Returns how many products per second a product of matrices adds up.
    fn products(&self, dtype: DType) -> Result<f64> {
        let mut best = 0f64;
        for side in [512usize, 1024, 2048, 4096] {
            let x = Tensor::rand(0f32, 1.0, (side, side), self)?.to_dtype(dtype)?;
            x.realize()?;
            let time = self.fastest(|| x.matmul(&x)?.realize())?;
            best = best.max((side as f64).powi(3) / time.as_secs_f64());
            if time > LONG {
                break;
            }
        }
        Ok(best)
    }

    /// Returns the device's time for the fastest of some runs.
    fn fastest(&self, run: impl Fn() -> Result<()>) -> Result<Duration> {
        let mut fastest = Duration::MAX;
        for _ in 0..ROUNDS {
            let (result, profile) = self.profile(&run)?;
            result?;
            fastest = fastest.min(profile.device_time());
        }
        Ok(fastest.max(Duration::from_nanos(1)))
    }
}
