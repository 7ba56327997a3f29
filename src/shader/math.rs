//! Mathematical functions of values, lane by lane. Families of them have their own files.
//!
//! Drivers round `exp`, `tanh` and their kin as they like: Vulkan allows `exp` an error of `3 + 2|x|` ulp. WGSL and
//! Vulkan have no `erf`, and no functions of `f64`. So functions that need full accuracy are written out here: range
//! reductions and minimax polynomials, most of them within 2 ulp. Unless said otherwise, coefficients are from the
//! Cephes library (S. Moshier, 1992, single precision). The ones of `f64` are in `double.rs`.

use super::builder::KernelBuilder;
use super::types::{Scalar, Type};
use super::value::{IntoValue, Value};
use rspirv::spirv::{BuiltIn, Capability, ExecutionMode, GlslStd450Op as Glsl, OpenclStd100Op as OpenCl};

/// What [`Value::divide_few`] divides is less.
pub(crate) const FEW: usize = 1 << 20;

impl<'k> Value<'k> {
    fn library(self, glsl: Glsl, opencl: OpenCl, rest: &[Value<'k>]) -> Value<'k> {
        if !self.ty.is_float() || rest.iter().any(|value| value.ty != self.ty) {
            self.kernel.fail(format!("{glsl:?} takes floats of one type, not {}", self.ty));
        }
        rest.iter().for_each(|&value| self.kernel.check_own(value));
        let arguments: Vec<_> = std::iter::once(self).chain(rest.iter().copied()).collect();
        self.kernel.library(glsl as u32, opencl as u32, self.ty, &arguments)
    }

    /// The absolute value. The smallest integer, which has none, stays itself.
    pub fn abs(self) -> Value<'k> {
        match self.ty.scalar {
            Scalar::F32 | Scalar::F16 => self.library(Glsl::FAbs, OpenCl::fabs, &[]),
            // By the bits. With the instruction, a driver compares -inf itself instead of its absolute value.
            Scalar::F64 => self.magnitude().bitcast(self.ty),
            Scalar::I32 | Scalar::I64 => self.lt(0).select(-self, self),
            Scalar::U32 | Scalar::Bool => self,
        }
    }

    /// The larger value; NaN if one is NaN.
    pub fn max(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let rhs = rhs.into_value(self.kernel, self.ty);
        let chosen = self.gt(rhs);
        if self.ty.is_float() { (chosen | self.is_nan()).select(self, rhs) } else { chosen.select(self, rhs) }
    }

    /// The larger float, by an instruction. If one is NaN, it is either of them. The device may take subnormals of
    /// `f32` for 0.
    pub(crate) fn larger(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let rhs = rhs.into_value(self.kernel, self.ty);
        self.library(Glsl::FMax, OpenCl::fmax, &[rhs])
    }

    /// The larger float, by an instruction. If one is NaN, it is the other one.
    pub(crate) fn larger_number(self, rhs: Value<'k>) -> Value<'k> {
        self.library(Glsl::NMax, OpenCl::fmax, &[rhs])
    }

    /// Two to the power of the value, by the device's own instruction: on Vulkan within `3 + 2 |x|` ulp ("Precision of
    /// Individual Operations"). Attention weighs keys by it.
    pub(crate) fn exp2_of_device(self) -> Value<'k> {
        self.library(Glsl::Exp2, OpenCl::exp2, &[])
    }

    /// The smaller value; NaN if one is NaN.
    pub fn min(self, rhs: impl IntoValue<'k>) -> Value<'k> {
        let rhs = rhs.into_value(self.kernel, self.ty);
        let chosen = self.lt(rhs);
        if self.ty.is_float() { (chosen | self.is_nan()).select(self, rhs) } else { chosen.select(self, rhs) }
    }

    /// The largest whole number that is not above the value.
    pub fn floor(self) -> Value<'k> {
        self.library(Glsl::Floor, OpenCl::floor, &[])
    }

    /// The smallest whole number that is not below the value.
    pub fn ceil(self) -> Value<'k> {
        self.library(Glsl::Ceil, OpenCl::ceil, &[])
    }

    /// The nearest whole number. Of two that are equally near, the even one.
    pub fn round(self) -> Value<'k> {
        if self.ty.scalar != Scalar::F64 {
            return self.library(Glsl::RoundEven, OpenCl::rint, &[]);
        }
        let below = self.abs().floor();
        let rest = self.abs() - below;
        let half = below * 0.5;
        let is_odd = half.ne(half.floor());
        let up = rest.gt(0.5) | (rest.eq(0.5) & is_odd);
        up.select(below + 1.0, below).copy_sign(self)
    }

    /// The whole number towards zero.
    pub fn trunc(self) -> Value<'k> {
        // Mesa's software device truncates and rounds doubles only below 2^24, unless the CPU has AVX-512.
        match self.ty.scalar {
            Scalar::F64 => self.abs().floor().copy_sign(self),
            _ => self.library(Glsl::Trunc, OpenCl::trunc, &[]),
        }
    }

    /// The square root.
    pub fn sqrt(self) -> Value<'k> {
        self.library(Glsl::Sqrt, OpenCl::sqrt, &[])
    }

    /// `self * b + c`, rounded once if the device can do that.
    pub fn fma(self, b: impl IntoValue<'k>, c: impl IntoValue<'k>) -> Value<'k> {
        let (b, c) = (b.into_value(self.kernel, self.ty), c.into_value(self.kernel, self.ty));
        self.library(Glsl::Fma, OpenCl::fma, &[b, c])
    }

    /// The polynomial with these coefficients, the highest power first.
    pub fn polynomial(self, coefficients: &[f64]) -> Value<'k> {
        let mut rest = coefficients.iter();
        let first = self.literal(rest.next().copied().unwrap_or(0.0));
        rest.fold(first, |sum, &c| sum.fma(self, c))
    }

    /// Returns `single` for numbers of single precision, and `double` for doubles.
    pub(super) fn by_precision<T>(self, single: T, double: T) -> T {
        if self.ty.scalar == Scalar::F64 { double } else { single }
    }

    /// Whether the sign is set. A zero may have it, too.
    pub(super) fn is_sign_negative(self) -> Value<'k> {
        let bits = self.bitcast(self.ty.bits());
        if self.ty.scalar == Scalar::F64 { bits.lt(0) } else { (bits >> 31).eq(1) }
    }

    /// Converts a whole number to the nearest integer of as many bits.
    pub(super) fn to_integer(self) -> Value<'k> {
        self.convert(self.by_precision(Scalar::I32, Scalar::I64))
    }

    /// Returns the nearest whole number, as a float and as an integer. From 2^22 on (doubles: 2^62), the integer is not
    /// defined. A GPU takes four times as long to convert a float as to add one. Adding 1.5 2^23 moves the whole number
    /// into the lowest bits.
    pub(super) fn round_to_integer(self) -> (Value<'k>, Value<'k>) {
        if self.ty.scalar == Scalar::F64 {
            let whole = self.round();
            return (whole, whole.to_integer());
        }
        let shift = 12_582_912.0f32;
        self.kernel.as_written(|| {
            let shifted = (self + shift).apart();
            let integer = shifted.bitcast(self.ty.with_scalar(Scalar::I32)) - shift.to_bits() as i32;
            (shifted - shift, integer)
        })
    }

    /// The float with the sign of `sign`.
    pub(super) fn copy_sign(self, sign: Value<'k>) -> Value<'k> {
        let sign = sign.bitcast(self.ty.bits()) & self.sign_bit();
        (self.magnitude() | sign).bitcast(self.ty)
    }

    /// The bits of a float of which only the sign's is set.
    pub(super) fn sign_bit(self) -> Value<'k> {
        let bits = self.ty.bits();
        if bits.scalar == Scalar::I64 {
            i64::MIN.into_value(self.kernel, bits)
        } else {
            0x8000_0000_u32.into_value(self.kernel, bits)
        }
    }

    /// The same number, but no compiler can combine it with other sums and products. Drivers add up the parts of a
    /// constant that was split to keep products exact: Mesa turns `n a + (n b + x)` into `n (a + b) + x`. This costs
    /// nothing if drivers are told so ([`KernelBuilder::as_written`]), of the number and of what follows: an H200's
    /// turns `(x + c) - c` into `x` if it is told of the sum alone.
    pub(crate) fn apart(self) -> Value<'k> {
        if self.kernel.is_as_written(self) { self } else { self.opaque() }
    }

    /// The same number, but no compiler knows that it is.
    pub fn opaque(self) -> Value<'k> {
        let bits = self.ty.bits();
        // Dispatches are flat, so this is 0, but only the crate knows that. It is added, so that an opaque value
        // becomes something else again: `(x | zero) | zero` would be `x | zero`.
        let zero = self.kernel.builtin(BuiltIn::WorkgroupId, Some(2));
        (self.bitcast(bits) + zero.convert(bits.scalar)).bitcast(self.ty)
    }

    /// Returns the sum of two floats, and what its rounding loses. Together they are the exact sum (D. Knuth, "The Art
    /// of Computer Programming", volume 2, 4.2.2, theorem B). If the sum is infinite or NaN, so is the rest.
    pub(crate) fn two_sum(self, rhs: Value<'k>) -> [Value<'k>; 2] {
        self.kernel.as_written(|| {
            let sum = (self + rhs).apart();
            let added = (sum - self).apart();
            let kept = (sum - added).apart();
            [sum, (self - kept).apart() + (rhs - added)]
        })
    }

    /// The sum of two numbers, or one of them if the other is the constant 0. (A compiler may not drop a 0 that is
    /// added: -0 becomes 0 by it.)
    pub(crate) fn plus(self, rhs: Value<'k>) -> Value<'k> {
        match [self, rhs].map(|value| self.kernel.is_zero(value)) {
            [_, true] => self,
            [true, _] => rhs,
            _ => self + rhs,
        }
    }

    /// An infinity or NaN of this value's type.
    pub(super) fn special(self, number: f32) -> Value<'k> {
        self.kernel.f32(number).convert(self.ty.scalar).into_value(self.kernel, self.ty)
    }

    /// `self / divisor` within 2.5 ulp for all numbers. The instruction is that exact only for divisors up to 2^126,
    /// and a compiler takes `x / x` for 1 even if it is NaN.
    pub fn divide(self, divisor: Value<'k>) -> Value<'k> {
        if self.ty.scalar == Scalar::F64 {
            return self / divisor.opaque();
        }
        let scale = divisor.abs().gt(1e30).select(divisor.literal(2f32.powi(-32)), 1.0);
        (self * scale) / (divisor * scale).opaque()
    }

    /// Returns `self / divisor` and the rest, of a `u32` below [`FEW`]. A GPU divides integers by some twenty
    /// instructions, of which each needs the one before. Through floats it takes a third of them.
    pub(crate) fn divide_few(self, divisor: Value<'k>) -> (Value<'k>, Value<'k>) {
        // The quotient is by half of a divisor's reciprocal or more from the nearest integers. An error of 2.5 ulp is
        // less: it is at most 2^20 times 2.5 times 2^-23 of that reciprocal.
        let [x, by] = [self, divisor].map(|x| x.convert(Scalar::F32));
        let quotient = ((x + 0.5) / by).convert(Scalar::U32);
        (quotient, self - quotient * divisor)
    }

    /// `self / divisor`, rounded to the nearest float, and to the even one at ties, of normal numbers whose quotient is
    /// normal. Devices divide within 2.5 ulp.
    pub(crate) fn divide_exactly(self, divisor: Value<'k>) -> Value<'k> {
        let k = self.kernel;
        let (a, b) = (self.magnitude(), divisor.magnitude());
        let whole = |bits: Value<'k>| (bits & 0x007f_ffff) | 0x0080_0000;
        let (dividend, divisor_whole) = (whole(a), whole(b));
        // The quotient of the whole numbers is between 1/2 and 2. It is made at least 1.
        let is_less = dividend.lt(divisor_whole);
        let remainder = k.var(is_less.select(dividend << 1, dividend));
        let quotient = k.var(k.u32(0));
        // Long division to 24 bits, and one more by which to round.
        k.for_step(k.u32(0), 25, 1, |_| {
            let goes = remainder.get().ge(divisor_whole);
            quotient.set((quotient.get() << 1) | goes.select(k.u32(1), 0));
            remainder.set((remainder.get() - goes.select(divisor_whole, 0)) << 1);
        });
        let (kept, half) = (quotient.get() >> 1, quotient.get() & 1);
        let is_more = remainder.get().ne(0) | (kept & 1).ne(0);
        let up = (half.ne(0) & is_more).select(k.u32(1), 0);
        let exponent = (a >> 23) - (b >> 23) + 126 - is_less.select(k.u32(1), 0);
        // The leading bit of the quotient adds 1 to the exponent.
        let sign = (self.bitcast(Type::U32) ^ divisor.bitcast(Type::U32)) & 0x8000_0000_u32;
        (((exponent << 23) + kept + up) | sign).bitcast(Type::F32)
    }

    /// The exact remainder of `self / divisor`, with the sign of `self`. It is NaN if there is none.
    pub fn fmod(self, divisor: Value<'k>) -> Value<'k> {
        let k = self.kernel;
        let word = self.ty.bits();
        let (a, b) = (self.magnitude(), divisor.magnitude());
        // A float is a whole number of 24 bits times 2^(exponent - 150); a double has 53 bits and 1075. Subnormal
        // numbers have the exponent 1, too.
        let (fraction_bits, bias) = self.ty.float_format();
        let bias = fraction_bits + bias;
        let one = 1i64 << fraction_bits;
        let exponent = |bits: Value<'k>| (bits >> fraction_bits).max(1);
        let whole = |bits: Value<'k>| {
            let fraction = bits & (one - 1);
            bits.ge(one).select(fraction | one, fraction)
        };
        let modulus = whole(b).max(1);
        let remainder = k.var(whole(a) % modulus);
        // Long division, eight bits at a time.
        let left = k.var(a.ge(b).select(exponent(a) - exponent(b), 0));
        let most = || left.get().lanes().into_iter().reduce(|most, lane| most.max(lane)).unwrap_or(left.get());
        k.while_(
            || most().gt(0),
            || {
                let bits = left.get().min(8);
                remainder.set((remainder.get() << bits) % modulus);
                left.set(left.get() - bits);
            },
        );
        // Converts the remainder to a float. If it is subnormal, the bits are the number.
        let remainder = remainder.get();
        let float = remainder.convert(self.ty.scalar).bitcast(word);
        let place = exponent(b);
        let normal = ((float >> fraction_bits) + place).gt(bias);
        let scaled = (float + (place << fraction_bits)) - i64::from(bias) * one;
        let bits = normal.select(scaled, remainder << (place - 1).min(fraction_bits));
        let bits = remainder.eq(0).select(remainder, bits);
        let result = a.lt(b).select(a, bits).bitcast(self.ty).copy_sign(self);
        let infinity = self.infinity_bits();
        let none = a.ge(infinity) | b.gt(infinity) | b.eq(0);
        none.select(self.special(f32::NAN), result)
    }

    /// The two half-precision floats packed in a word, the low half first.
    pub fn unpack_f16(self) -> [Value<'k>; 2] {
        if self.kernel.target().unpacks_halves {
            // This is one instruction instead of a dozen on bits.
            let pair = self.kernel.library(Glsl::UnpackHalf2x16 as u32, 0, Type::vec2(Scalar::F32), &[self]);
            let pair = [pair.lane(0), pair.lane(1)];
            if self.kernel.target().packs_halves {
                self.kernel.tell_of_halves(Capability::DenormPreserve, ExecutionMode::DenormPreserve);
                return pair;
            }
            // If it is not kept apart from an addition that follows, an H200's driver takes subnormals for 0.
            return pair.map(Value::opaque);
        }
        [(self & 0xffff_u32).half_bits_to_f32(), (self >> 16).half_bits_to_f32()]
    }

    /// The float with these half-precision bits.
    pub fn half_bits_to_f32(self) -> Value<'k> {
        let float = self.ty.with_scalar(Scalar::F32);
        let magnitude = self & 0x7fff_u32;
        // The exponent is rebiased by 112. For infinity and NaN it is rebiased once more, to the largest there is.
        let normal = (magnitude << 13) + 0x3800_0000_u32;
        let special = normal + 0x3800_0000_u32;
        // The last bit of 0.5 is the smallest subnormal, so a subnormal has its place in the lowest bits of 0.5.
        let subnormal = ((magnitude | 0.5f32.to_bits()).bitcast(float).opaque() - 0.5).bitcast(self.ty);
        let value = magnitude.ge(0x7c00_u32).select(special, normal);
        let value = magnitude.lt(0x0400_u32).select(subnormal, value);
        (value | ((self & 0x8000_u32) << 16)).bitcast(float)
    }

    /// The half-precision bits of a float, rounded to the nearest, ties to even. They do not depend on the device's own
    /// conversion.
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

impl<'k> Value<'k> {
    /// The two `bf16` packed in a word, the low one first.
    pub fn unpack_bf16(self) -> [Value<'k>; 2] {
        [self << 16, self & 0xffff_0000_u32].map(|bits| bits.bitcast(self.ty.with_scalar(Scalar::F32)))
    }

    /// The `bf16` bits of a float: the upper half of its bits, rounded to the nearest, ties to even.
    pub fn to_bf16_bits(self) -> Value<'k> {
        self.bf16_in_upper_half() >> 16
    }

    /// A word whose upper half has the `bf16` bits of a float. Its lower half may be anything.
    fn bf16_in_upper_half(self) -> Value<'k> {
        let bits = self.bitcast(self.ty.with_scalar(Scalar::U32));
        let rounded = bits + 0x7fff_u32 + ((bits >> 16) & 1);
        // Rounding could carry NaN over to infinity. So NaN is cut, and the highest bit of its fraction keeps it NaN.
        self.is_nan().select(bits | 0x0040_0000_u32, rounded)
    }
}

impl KernelBuilder {
    /// Packs two floats as `bf16` bits into a word, the first in the low half.
    pub fn pack_bf16<'k>(&'k self, low: Value<'k>, high: Value<'k>) -> Value<'k> {
        (low.bf16_in_upper_half() >> 16) | (high.bf16_in_upper_half() & 0xffff_0000_u32)
    }

    /// Packs two floats as half-precision bits into a word, the first in the low half.
    pub fn pack_f16<'k>(&'k self, low: Value<'k>, high: Value<'k>) -> Value<'k> {
        if !self.target().packs_halves {
            return low.to_half_bits() | (high.to_half_bits() << 16);
        }
        self.round_halves();
        self.vector(&[low, high]).convert(Scalar::F16).bitcast(Type::U32)
    }

    /// Tells the device how to convert to halves throughout the kernel.
    pub(super) fn round_halves(&self) {
        self.tell_of_halves(Capability::RoundingModeRTE, ExecutionMode::RoundingModeRTE);
        self.tell_of_halves(Capability::DenormPreserve, ExecutionMode::DenormPreserve);
    }

    /// Tells the device how to treat halves throughout the kernel.
    fn tell_of_halves(&self, capability: Capability, mode: ExecutionMode) {
        self.extension("SPV_KHR_float_controls");
        self.capability(capability);
        self.execution_mode(mode, 16);
    }
}

impl<'k> Value<'k> {
    /// The `f16` that is nearest to an `f32`, in each lane.
    pub(crate) fn rounded_to_f16(self) -> Value<'k> {
        if !self.kernel.target().packs_halves {
            return self.to_half_bits().half_bits_to_f32();
        }
        let (k, lanes) = (self.kernel, self.lanes());
        // Without `opaque`, an H200's compiler would drop the conversion there and back.
        let words = lanes.chunks(2).map(|pair| k.pack_f16(pair[0], pair[pair.len() - 1]).opaque());
        let rounded: Vec<_> = words.flat_map(Value::unpack_f16).take(lanes.len()).collect();
        if rounded.len() == 1 { rounded[0] } else { k.vector(&rounded) }
    }
}
