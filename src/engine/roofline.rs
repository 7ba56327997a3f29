//! [`Roofline`]: how fast a device can be at most.

use crate::kernels::{Units, Work};
use std::time::Duration;

/// How fast the kernels of this crate move bytes and add up products on a device, at most. A kernel cannot be faster
/// than the slower of the two, if its data is larger than the device's caches. This is the [roofline model].
///
/// [`Device::roofline`](crate::Device::roofline) measures it.
///
/// [roofline model]: https://doi.org/10.1145/1498765.1498785
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Roofline {
    /// Bytes per second that a kernel reads and writes.
    pub bandwidth: f64,
    /// Products of [`F32`](crate::DType::F32) per second that a kernel adds up. A product and its addition are one.
    pub products: f64,
    /// Products of [`F16`](crate::DType::F16) per second that matrix units add up, if the device has such units.
    pub matrix_products: Option<f64>,
}

impl Roofline {
    /// Returns the least time for some bytes and some work. Products of 64 bits do not count.
    pub(crate) fn least_time(&self, bytes: u64, work: Work) -> Duration {
        let rate = match work.units {
            Units::Lanes => Some(self.products),
            Units::WideLanes => None,
            Units::Matrix => self.matrix_products,
        };
        let arithmetic = rate.map_or(0.0, |rate| work.products as f64 / rate);
        Duration::from_secs_f64(arithmetic.max(bytes as f64 / self.bandwidth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_bytes_and_products_counts() {
        let roofline = Roofline { bandwidth: 1e9, products: 1e12, matrix_products: Some(1e13) };
        let time =
            |bytes, products, units| roofline.least_time(bytes, Work { products, units, touched: u64::MAX }).as_nanos();
        assert_eq!(time(5000, 1_000_000, Units::Lanes), 5000);
        assert_eq!(time(500, 1_000_000, Units::Lanes), 1000);
        assert_eq!(time(500, 1_000_000, Units::WideLanes), 500);
        assert_eq!(time(50, 1_000_000, Units::Matrix), 100);
    }
}
