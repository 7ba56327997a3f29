//! The error function, and the normal distribution in GELU.

use super::value::Value;

impl<'k> Value<'k> {
    /// The error function. Coefficients by N. Juffa (2015, "Accuracy of an approximation to erff").
    pub fn erf(self) -> Value<'k> {
        let t = self.abs();
        let s = self * self;
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
        let small = p.fma(self, self);
        let result = t.gt(0.927_734_375).select(large, small);
        self.is_nan().select(self, result)
    }

    /// `x` times the probability that a normally distributed number is below `x`, within 5 ulp also where that is tiny.
    pub fn gelu(self) -> Value<'k> {
        // From here on that probability is 0 or 1.
        let t = self.abs().min(14.375);
        // The probability of a number above t is exp(-t^2 / 2) R(t). R(t) / u is a polynomial of 1 - u with u = 4.5 / (t +
        // 2.25), fitted for the smallest relative error from 0 to 13.5.
        let u = self.literal(4.5) / (t + 2.25);
        let tail = u
            * (self.literal(1.0) - u).polynomial(&[
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
            ]);
        let [high, low] = t.split();
        let positive = self.gt(0.0);
        // Where the probability alone would be subnormal, its product with t need not be.
        let tail = (positive.select(t.literal(1.0), t) * tail).times_exp(high * high * -0.5, low * (t + high) * -0.5);
        let result = positive.select(self * (self.literal(1.0) - tail), -tail);
        // Minus infinity times 0.
        let result = self.eq(self.special(f32::NEG_INFINITY)).select(self.special(f32::NAN), result);
        self.is_nan().select(self, result)
    }
}
