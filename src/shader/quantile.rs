//! Quantiles: the numbers below which a given part of a distribution lies. They turn uniform random numbers into
//! numbers of the distribution. All are within 3 ulp, whether products and sums are fused or not. That was tried with
//! every number that `random` draws.

use super::value::Value;
use std::f64::consts::E;

/// 1 / e in two parts.
const ONE_OVER_E: [f64; 2] = [0.367_879_45, -9.149_756e-9];

impl<'k> Value<'k> {
    /// The quantile of the normal distribution at `(1 + self) / 2`, for odd multiples of 2^-23 between -1 and 1. As in
    /// M. Giles, "Approximating the erfinv function", 2010, it is `self` times a function of `log(1 - self^2)`. The
    /// coefficients are separate minimax fits. Both parts are polynomials, because devices round square roots as they
    /// like.
    pub(crate) fn normal_quantile(self) -> Value<'k> {
        let w = -((self.literal(1.0) - self) * (self + 1.0)).log();
        let central = (w - 2.5).polynomial(&[
            -1.243_243_1e-8,
            3.285_592_2e-8,
            6.592_648_6e-7,
            -4.897_004e-6,
            -7.019_233_6e-6,
            3.087_856_7e-4,
            -1.771_644_6e-3,
            -5.907_717e-3,
            3.488_020_3e-1,
            2.123_313_4,
        ]);
        let tail = (w - 10.25).polynomial(&[
            3.012_978_8e-12,
            -6.319_878e-11,
            6.081_042_3e-10,
            -3.833_891e-9,
            5.538_272e-9,
            4.313_665_4e-7,
            -1.132_685_7e-5,
            2.309_707_2e-4,
            -5.206_957_5e-3,
            2.219_035_5e-1,
            4.292_429_4,
        ]);
        w.lt(5.0).select(central, tail) * self
    }

    /// The quantile of the Gumbel distribution, `-log(-log(self))`, for odd multiples of 2^-24 between 0 and 1.
    pub(crate) fn gumbel_quantile(self) -> Value<'k> {
        // Next to 1 / e the inner logarithm is -1 and the result is 0. With `self = (1 + t) / e` the result is
        // `-log(1 - log(1 + t))`, which keeps its digits.
        let near = self.gt(0.27) & self.lt(0.48);
        let t = ((self - ONE_OVER_E[0]).opaque() - ONE_OVER_E[1]) * E;
        let zero = self.literal(0.0);
        let (m, e) = self.log_parts();
        let inner = -near.select(t, m).log_of_parts(near.select(zero, e));
        let (m, e) = inner.log_parts();
        -near.select(inner, m).log_of_parts(near.select(zero, e))
    }
}
