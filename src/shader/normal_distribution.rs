//! The error function, and the normal distribution in GELU.

use super::double;
use super::types::Scalar;
use super::value::Value;
use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2, TAU};

impl<'k> Value<'k> {
    /// The probability that a normally distributed number is above this one, times `exp(self^2 / 2)`. This number must
    /// not be negative. With the right `k`, the result is `u = 2 k / (self + k)` times a polynomial of `1 - u`. The
    /// polynomial is fitted for the smallest relative error from 0 to 13.5 (as a double, to 39).
    fn scaled_normal_tail(self) -> Value<'k> {
        let k = self.by_precision(2.25, double::NORMAL_TAIL_SHIFT);
        let u = self.literal(2.0 * k) / (self + k);
        let single = [
            -2.001_904_6e-5,
            -4.698_856e-5,
            4.975_749e-5,
            3.031_758e-4,
            1.858_268_4e-4,
            -1.252_909_7e-3,
            -2.348_141e-3,
            6.185_988_9e-3,
            1.780_745e-2,
            -8.586_246e-2,
            1.536_519_4e-1,
        ];
        u * (self.literal(1.0) - u).polynomial(self.by_precision(&single, &double::NORMAL_TAIL))
    }

    /// Returns this double minus the number for which the rounded `u` of its tail is exact.
    fn lost_in_tail(self) -> Value<'k> {
        let k = double::NORMAL_TAIL_SHIFT;
        let sum = (self + k).opaque();
        let u = (self.literal(2.0 * k) / sum).opaque();
        let ([u_high, u_low], [sum_high, sum_low]) = (u.split(), sum.split());
        let left = self.literal(2.0 * k) - u_high * sum_high - u_high * sum_low - u_low * sum_high - u_low * sum_low;
        self - (sum - k) - left * sum / (2.0 * k)
    }

    /// The error function. Coefficients by N. Juffa (2015, "Accuracy of an approximation to erff").
    pub fn erf(self) -> Value<'k> {
        let t = self.abs();
        let s = self * self;
        if self.ty.scalar == Scalar::F64 {
            let small = s.polynomial(&double::ERF).fma(self, self);
            let above = (t.min(6.0) * SQRT_2).scaled_normal_tail() * (-s).exp();
            let result = t.gt(0.927_734_375).select((above.fma(-2.0, 1.0)).copy_sign(self), small);
            return self.is_nan().select(self, result);
        }
        let r = t.fma(-1.728_534_7e-5, 3.831_971_3e-4);
        let u = t.fma(-3.883_964_4e-3, 2.425_462_2e-2);
        let r = r.fma(s, u).fma(t, -1.067_778_77e-1).fma(t, -6.348_466_87e-1).fma(t, -1.287_175_12e-1).fma(t, -t);
        let large = (self.literal(1.0) - r.exp()).copy_sign(self);
        let p = s.polynomial(&[
            -5.967_617_03e-4,
            4.991_194_23e-3,
            -2.676_813_49e-2,
            1.128_199_25e-1,
            -3.761_253_36e-1,
            1.283_791_66e-1,
        ]);
        // Of a tiny number, a product with `p` is subnormal, and some devices take that for 0.
        let small = t.lt(1e-30).select(self * FRAC_2_SQRT_PI, p.fma(self, self));
        let result = t.gt(0.927_734_375).select(large, small);
        self.is_nan().select(self, result)
    }

    /// `x` times the probability that a normally distributed number is below `x`. It is within 5 ulp, also if the
    /// probability is tiny.
    pub fn gelu(self) -> Value<'k> {
        // From here on the probability is 0 or 1.
        let t = self.abs().min(self.by_precision(14.375, 39.0));
        let tail = t.scaled_normal_tail();
        let [high, low] = t.split();
        let positive = self.gt(0.0);
        // The probability alone may be subnormal although its product with t is not.
        let factor = positive.select(t.literal(1.0), t) * tail;
        let (square, rest) = (high * high * -0.5, low * (t + high) * -0.5);
        let rest = if self.ty.scalar == Scalar::F64 {
            // The derivative of the tail's logarithm.
            t.lost_in_tail().fma(t - t.literal(1.0 / TAU.sqrt()) / tail, rest)
        } else {
            rest
        };
        let tail = factor.times_exp(square, rest);
        let result = positive.select(self * (self.literal(1.0) - tail), -tail);
        // Minus infinity times 0 is NaN.
        let result = self.eq(self.special(f32::NEG_INFINITY)).select(self.special(f32::NAN), result);
        self.is_nan().select(self, result)
    }
}
