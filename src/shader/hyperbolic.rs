//! Hyperbolic functions and their inverses, within 3 ulp. Coefficients and ranges are from the Cephes library (S.
//! Moshier, 1992, single precision). The ones of doubles are in `double.rs`.

use super::double;
use super::types::Scalar;
use super::value::Value;
use std::f64::consts::{LN_2, SQRT_2};

impl<'k> Value<'k> {
    /// The hyperbolic tangent.
    pub fn tanh(self) -> Value<'k> {
        let x = self.abs();
        let z = self * self;
        let single = [-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1];
        let p = z.polynomial(self.by_precision(&single, &double::TANH));
        let small = (self * z).fma(p, self);
        let large = (self.literal(1.0) - self.literal(2.0) / ((x + x).exp() + 1.0)).copy_sign(self);
        x.lt(0.625).select(small, large)
    }

    /// The hyperbolic sine.
    pub fn sinh(self) -> Value<'k> {
        let a = self.abs();
        let z = self * self;
        let coefficients = self.by_precision(&[2.037_219_1e-4, 8.330_284e-3, 1.666_671_6e-1][..], &double::SINH);
        let small = (self * z).fma(z.polynomial(coefficients), self);
        let half = a.half_exp();
        let large = (half - self.literal(0.25) / half).copy_sign(self);
        let result = a.lt(1.0).select(small, large);
        self.is_nan().select(self, result)
    }

    /// The hyperbolic cosine.
    pub fn cosh(self) -> Value<'k> {
        let half = self.abs().half_exp();
        half + self.literal(0.25) / half
    }

    /// The inverse hyperbolic sine.
    pub fn asinh(self) -> Value<'k> {
        let a = self.abs();
        if self.ty.scalar == Scalar::F64 {
            // If the square of a would overflow: log(2 a).
            let huge = a.gt(1e100);
            let beyond = huge.select(a, a + a * a / (a.fma(a, 1.0).sqrt() + 1.0));
            let result = (beyond.log1p() + huge.select(a.literal(LN_2), 0.0)).copy_sign(self);
            return self.is_nan().select(self, result);
        }
        let z = self * self;
        let p = z.polynomial(&[2.012_200_3e-2, -4.269_934e-2, 7.484_758_6e-2, -1.666_628_8e-1]);
        let small = (self * z).fma(p, self);
        // From 1500 on, adding 1 to the square of a makes no difference, and beyond, the square overflows: log(2 a).
        let huge = a.gt(1500.0);
        let sum = huge.select(a, a + a.fma(a, 1.0).sqrt());
        let large = (sum.log() + huge.select(a.literal(LN_2), 0.0)).copy_sign(self);
        let result = a.lt(0.5).select(small, large);
        self.is_nan().select(self, result)
    }

    /// The inverse hyperbolic cosine. It is NaN for numbers below 1.
    pub fn acosh(self) -> Value<'k> {
        let z = self - 1.0;
        if self.ty.scalar == Scalar::F64 {
            let huge = self.gt(1e100);
            let beyond = huge.select(self, z + (z * (z + 2.0)).sqrt());
            let result = beyond.log1p() + huge.select(self.literal(LN_2), 0.0);
            return self.ge(1.0).select(result, self.special(f32::NAN));
        }
        let p = z.polynomial(&[1.759_688_1e-3, -7.527_288_7e-3, 2.645_490_5e-2, -1.178_474_2e-1, SQRT_2]);
        let small = p * z.sqrt();
        let huge = self.gt(1500.0);
        let sum = huge.select(self, self + (z * (self + 1.0)).sqrt());
        let large = sum.log() + huge.select(self.literal(LN_2), 0.0);
        let result = z.lt(0.5).select(small, large);
        self.ge(1.0).select(result, self.special(f32::NAN))
    }

    /// The inverse hyperbolic tangent. It is infinite at -1 and 1, and NaN outside of them.
    pub fn atanh(self) -> Value<'k> {
        let a = self.abs();
        let result = if self.ty.scalar == Scalar::F64 {
            (((a * 2.0) / (self.literal(1.0) - a)).log1p() * 0.5).copy_sign(self)
        } else {
            let z = self * self;
            let p = z.polynomial(&[1.817_400_8e-1, 8.243_703e-2, 1.466_914_3e-1, 1.997_821_6e-1, 3.333_373e-1]);
            let small = (self * z).fma(p, self);
            let large = (((a + 1.0) / (self.literal(1.0) - a)).log() * 0.5).copy_sign(self);
            a.lt(0.5).select(small, large)
        };
        let result = a.eq(1.0).select(self.special(f32::INFINITY).copy_sign(self), result);
        a.le(1.0).select(result, self.special(f32::NAN))
    }
}
