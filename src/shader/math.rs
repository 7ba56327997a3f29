//! Mathematical functions of values, lane by lane.
//!
//! Drivers round `exp`, `tanh` and their kin as they like (Vulkan allows `exp` an error of `3 + 2|x|` ulp, WGSL and
//! Vulkan have no `erf` at all), so those that need full `f32` accuracy are written out here: range reductions and
//! minimax polynomials, within 2 ulp. Coefficients are from the Cephes library (S. Moshier, 1992, single precision)
//! unless said otherwise.

use super::builder::KernelBuilder;
use super::types::Scalar;
use super::value::{IntoValue, Value};
use rspirv::spirv::{BuiltIn, GlslStd450Op as Glsl, OpenclStd100Op as OpenCl};

impl<'k> Value<'k> {
    fn library(self, glsl: Glsl, opencl: OpenCl, rest: &[Value<'k>]) -> Value<'k> {
        if !self.ty.is_float() || rest.iter().any(|value| value.ty != self.ty) {
            self.kernel.fail(format!("{glsl:?} takes floats of one type, not {}", self.ty));
        }
        rest.iter().for_each(|&value| self.kernel.check_own(value));
        let arguments: Vec<_> = std::iter::once(self).chain(rest.iter().copied()).collect();
        self.kernel.library(glsl as u32, opencl as u32, self.ty, &arguments)
    }

    /// The absolute value; of `i32::MIN` it is `i32::MIN`.
    pub fn abs(self) -> Value<'k> {
        match self.ty.scalar {
            Scalar::F32 | Scalar::F16 => self.library(Glsl::FAbs, OpenCl::fabs, &[]),
            Scalar::I32 => self.lt(0).select(-self, self),
            Scalar::U32 | Scalar::Bool => self,
        }
    }

    /// The larger value; NaN if one is NaN.
    pub fn max(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let rhs = rhs.into_value(self.kernel, self.ty);
        let chosen = self.gt(rhs);
        if self.ty.is_float() { (chosen | self.is_nan()).select(self, rhs) } else { chosen.select(self, rhs) }
    }

    /// The smaller value; NaN if one is NaN.
    pub fn min(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let rhs = rhs.into_value(self.kernel, self.ty);
        let chosen = self.lt(rhs);
        if self.ty.is_float() { (chosen | self.is_nan()).select(self, rhs) } else { chosen.select(self, rhs) }
    }

    /// The largest whole number that is not larger.
    pub fn floor(self) -> Value<'k> {
        self.library(Glsl::Floor, OpenCl::floor, &[])
    }

    /// The smallest whole number that is not smaller.
    pub fn ceil(self) -> Value<'k> {
        self.library(Glsl::Ceil, OpenCl::ceil, &[])
    }

    /// The nearest whole number, the even one of two equally near.
    pub fn round(self) -> Value<'k> {
        self.library(Glsl::RoundEven, OpenCl::rint, &[])
    }

    /// The whole number towards zero.
    pub fn trunc(self) -> Value<'k> {
        self.library(Glsl::Trunc, OpenCl::trunc, &[])
    }

    /// The square root.
    pub fn sqrt(self) -> Value<'k> {
        self.library(Glsl::Sqrt, OpenCl::sqrt, &[])
    }

    /// `self * b + c`, rounded once where the device can.
    pub fn fma(self, b: impl IntoValue<'k>, c: impl IntoValue<'k>) -> Value<'k> {
        let (b, c) = (b.into_value(self.kernel, self.ty), c.into_value(self.kernel, self.ty));
        self.library(Glsl::Fma, OpenCl::fma, &[b, c])
    }

    /// The polynomial with these coefficients, the highest power first.
    pub fn polynomial(self, coefficients: &[f32]) -> Value<'k> {
        let mut rest = coefficients.iter();
        let first = self.literal(rest.next().copied().unwrap_or(0.0));
        rest.fold(first, |sum, &c| sum.fma(self, c))
    }

    /// The bits of a float with the sign of `sign`.
    fn copy_sign(self, sign: Value<'k>) -> Value<'k> {
        let bits = self.ty.with_scalar(Scalar::U32);
        ((self.bitcast(bits) & 0x7fff_ffff_u32) | (sign.bitcast(bits) & 0x8000_0000_u32)).bitcast(self.ty)
    }

    /// The same number, but nothing that a compiler could combine with other arithmetic. Drivers add up the parts of a
    /// constant that was split to keep products exact: Mesa turns `n a + (n b + x)` into `n (a + b) + x`.
    pub fn opaque(self) -> Value<'k> {
        let bits = self.ty.with_scalar(Scalar::U32);
        // Dispatches are flat, so that this is 0, which only the crate knows.
        let zero = self.kernel.builtin(BuiltIn::NumWorkgroups, Some(2)) - 1;
        (self.bitcast(bits) | zero).bitcast(self.ty)
    }

    /// Two to the power of this integer, for -126 to 127.
    fn power_of_two(self) -> Value<'k> {
        ((self + 127) << 23).bitcast(self.ty.with_scalar(Scalar::F32))
    }

    /// e to the power of the value.
    pub fn exp(self) -> Value<'k> {
        // x = n ln 2 + r, with ln 2 in two parts so that the products are exact. Beyond the limits the result is 0 or
        // infinite whatever x is.
        let x = self.lt(-104.0).select(self.literal(-104.0), self);
        let x = x.gt(89.0).select(self.literal(89.0), x);
        let n = (x * std::f32::consts::LOG2_E).round();
        let r = n.fma(-0.693359375, x).opaque();
        let r = n.fma(2.121_944_4e-4, r);
        let p = r.polynomial(&[1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1]);
        let e = (r * r).fma(p, r) + 1.0;
        // In two steps, as 2^n alone may leave the range where the result does not.
        let n = n.convert(Scalar::I32);
        let half = n >> 1;
        let result = e * half.power_of_two() * (n - half).power_of_two();
        self.is_nan().select(self, result)
    }

    /// The natural logarithm.
    pub fn log(self) -> Value<'k> {
        let bits = self.ty.with_scalar(Scalar::U32);
        let signed = self.ty.with_scalar(Scalar::I32);
        // Subnormal numbers are scaled into the normal range first.
        let tiny = self.lt(1.175_494_4e-38);
        let x = tiny.select(self * 8_388_608.0, self);
        let word = x.bitcast(bits);
        // m in [sqrt(1/2), sqrt(2)) and e with x = m 2^e.
        let shifted = word - 0x3f35_04f3_u32;
        let e = (shifted.bitcast(signed) >> 23).convert(Scalar::F32);
        let e = tiny.select(e - 23.0, e);
        let m = ((shifted & 0x007f_ffff_u32) + 0x3f35_04f3_u32).bitcast(self.ty) - 1.0;
        let z = m * m;
        let p = m.polynomial(&[
            7.037_684e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_4e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ]);
        let y = z.fma(m * p, e * -2.121_944_4e-4).opaque();
        let result = e.fma(0.693359375, m + z.fma(-0.5, y));
        let infinity = self.special(f32::INFINITY);
        let result = self.eq(infinity).select(infinity, result);
        let result = self.eq(0.0).select(-infinity, result);
        let result = self.lt(0.0).select(self.special(f32::NAN), result);
        self.is_nan().select(self, result)
    }

    /// An infinity or NaN of this value's type.
    fn special(self, number: f32) -> Value<'k> {
        self.kernel.f32(number).into_value(self.kernel, self.ty)
    }

    /// The hyperbolic tangent.
    pub fn tanh(self) -> Value<'k> {
        let x = self.abs();
        let z = self * self;
        let p = z.polynomial(&[-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1]);
        let small = (self * z).fma(p, self);
        let large = (self.literal(1.0) - self.literal(2.0) / ((x + x).exp() + 1.0)).copy_sign(self);
        x.lt(0.625).select(small, large)
    }

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

    /// Sine and cosine of an angle in radians, for magnitudes up to 8192.
    pub fn sin_cos(self) -> (Value<'k>, Value<'k>) {
        // The angle is n pi/2 + r, with pi/2 in three parts so that the products are exact.
        let n = (self * std::f32::consts::FRAC_2_PI).round();
        let r = n.fma(-1.570_312_5, self).opaque();
        let r = n.fma(-4.837_513e-4, r).opaque();
        let r = n.fma(-7.549_79e-8, r);
        let z = r * r;
        let sine = (r * z).fma(z.polynomial(&[-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]), r);
        let cosine = (z * z).fma(z.polynomial(&[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]), z.fma(-0.5, 1.0));
        let quadrant = n.convert(Scalar::I32) & 3;
        let odd = (quadrant & 1).eq(1);
        let (s, c) = (odd.select(cosine, sine), odd.select(sine, cosine));
        (quadrant.ge(2).select(-s, s), (quadrant.eq(1) | quadrant.eq(2)).select(-c, c))
    }

    /// `self / divisor` within 2.5 ulp for all numbers: the instruction is only as good as that for divisors up to
    /// 2^126, and a compiler takes `x / x` for 1 even where it is NaN.
    pub fn divide(self, divisor: Value<'k>) -> Value<'k> {
        let scale = divisor.abs().gt(1e30).select(divisor.literal(2f32.powi(-32)), 1.0);
        (self * scale) / (divisor * scale).opaque()
    }

    /// The two half-precision floats packed in a word, the low half first.
    pub fn unpack_f16(self) -> [Value<'k>; 2] {
        [(self & 0xffff_u32).half_bits_to_f32(), (self >> 16).half_bits_to_f32()]
    }

    /// The float with these half-precision bits. Not by the device's own instruction, which may flush subnormals.
    pub fn half_bits_to_f32(self) -> Value<'k> {
        let float = self.ty.with_scalar(Scalar::F32);
        let magnitude = self & 0x7fff_u32;
        // The exponent is rebiased by 112; that of infinity and NaN once more, to the largest there is.
        let normal = (magnitude << 13) + 0x3800_0000_u32;
        let special = normal + 0x3800_0000_u32;
        let subnormal = (magnitude.convert(Scalar::F32) * 2f32.powi(-24)).bitcast(self.ty);
        let value = magnitude.ge(0x7c00_u32).select(special, normal);
        let value = magnitude.lt(0x0400_u32).select(subnormal, value);
        (value | ((self & 0x8000_u32) << 16)).bitcast(float)
    }

    /// The half-precision bits of a float, rounded to the nearest, ties to even, whatever the device's own
    /// conversion does.
    pub fn to_half_bits(self) -> Value<'k> {
        let word = self.ty.with_scalar(Scalar::U32);
        let bits = self.bitcast(word);
        let sign = (bits >> 16) & 0x8000_u32;
        let magnitude = bits & 0x7fff_ffff_u32;
        // Normal: rebias the exponent and round by adding half of the last place, less one if it is even.
        let normal = (magnitude - 0x3800_0000_u32 + 0xfff_u32 + ((magnitude >> 13) & 1)) >> 13;
        // Subnormal: an addition to 0.5 shifts the bits into place and rounds them.
        let subnormal = (magnitude.bitcast(self.ty) + 0.5).bitcast(word) - 0x3f00_0000_u32;
        let finite = magnitude.lt(0x3880_0000_u32).select(subnormal, normal);
        let special = magnitude.gt(0x7f80_0000_u32).select(magnitude.literal(0x7e00_u32), 0x7c00_u32);
        magnitude.ge(0x4780_0000_u32).select(special, finite) | sign
    }
}

impl KernelBuilder {
    /// Two floats as half-precision bits in a word, the first in the low half.
    pub fn pack_f16<'k>(&'k self, low: Value<'k>, high: Value<'k>) -> Value<'k> {
        low.to_half_bits() | (high.to_half_bits() << 16)
    }
}
