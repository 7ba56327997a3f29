//! Exponentials, logarithms and powers, within 2 ulp. Coefficients of `exp2` and the logarithms are from the Cephes
//! library (S. Moshier, 1992, single precision). The ones of doubles are in `double.rs`. The series of the
//! inverse hyperbolic tangent is Taylor's.

use super::double;
use super::types::Scalar;
use super::value::Value;
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E};

/// 2 / ln 2 in two parts. The first has 12 bits.
const TWO_LOG2_E: [f64; 2] = [2.885_742_2, -3.521_057e-4];

/// `(exp(r) - 1 - r) / r^2` up to `r^3`, the highest power first, by pairs. With [`HIGHEST_OF_EXP`], `exp(r)` is off by
/// at most 4.5e-9 of itself, for `r` up to `ln 2 / 2`. Before they were rounded, the coefficients were the best ones of
/// this degree (found by C. Lawson's method).
const EXP: [[f64; 2]; 2] = [[8.368_745e-3, 4.166_839e-2], [1.666_652e-1, 4.999_999_3e-1]];
const HIGHEST_OF_EXP: f64 = 1.381_454e-3;

impl<'k> Value<'k> {
    /// Two to the power of this integer, from -126 to 127 (as a double, from -1022 to 1023).
    fn power_of_two(self) -> Value<'k> {
        match self.ty.scalar {
            Scalar::I64 => ((self + 1023) << 52).bitcast(self.ty.with_scalar(Scalar::F64)),
            _ => ((self + 127) << 23).bitcast(self.ty.with_scalar(Scalar::F32)),
        }
    }

    /// The float times two to the power of an integer from -252 to 254 (as a double, from -2044 to 2046).
    fn scale_by_power_of_two(self, n: Value<'k>) -> Value<'k> {
        // In two steps, because 2^n alone may leave the range although the result does not.
        let half = n >> 1;
        self * half.power_of_two() * (n - half).power_of_two()
    }

    /// ln 2 in two parts. The first has few bits, so that whole multiples of it are exact.
    fn ln_2(self) -> [f64; 2] {
        self.by_precision([0.693359375, -2.121_944_4e-4], double::LN_2)
    }

    /// Returns `r` and an integer `n` with `self = r + n ln 2`. `r` is between -0.35 and 0.35.
    fn exp_reduced(self) -> (Value<'k>, Value<'k>) {
        // Beyond the limits the result is 0 or infinite, whatever x is.
        let (low, high) = self.by_precision((-104.0, 90.0), (-746.0, 712.0));
        let x = self.lt(low).select(self.literal(low), self);
        let x = x.gt(high).select(self.literal(high), x);
        let (n, integer) = (x * LOG2_E).round_to_integer();
        let [ln_2, rest] = self.ln_2();
        let r = n.fma(-ln_2, x).opaque();
        (n.fma(-rest, r), integer)
    }

    /// `exp(self) - 1` near 0.
    fn exp_series(self) -> Value<'k> {
        let square = self * self;
        let p = match self.ty.scalar {
            Scalar::F64 => self.polynomial(&double::EXP),
            _ => {
                // By pairs (G. Estrin, 1960): with one term after the other, a processor waits for each.
                let [high, low] = EXP.map(|pair| self.polynomial(&pair));
                square.fma(square.fma(HIGHEST_OF_EXP, high), low)
            }
        };
        let series = square.fma(p, self);
        // Without this, Mesa adds the 1 of `exp` to the smaller of the two terms, which costs doubles a bit.
        if self.ty.scalar == Scalar::F64 { series.opaque() } else { series }
    }

    /// Returns `d` and an integer `n` with `exp(self) = (d + 1) 2^n`. `d` is between -0.3 and 0.42.
    fn exp_parts(self) -> (Value<'k>, Value<'k>) {
        let (r, n) = self.exp_reduced();
        (r.exp_series(), n)
    }

    /// e to the power of the value.
    pub fn exp(self) -> Value<'k> {
        let (d, n) = self.exp_parts();
        self.is_nan().select(self, (d + 1.0).scale_by_power_of_two(n))
    }

    /// e to the power of a number below 88. If the result is below the normal numbers, it is 0. This takes half as many
    /// instructions as `exp`. Softmax of columns, with two for each element, would wait for `exp`.
    pub(crate) fn exp_below_88(self) -> Value<'k> {
        if self.ty.scalar == Scalar::F64 {
            return self.exp();
        }
        // The lowest bits of the sum are the whole number nearest to `self / ln 2`, plus 127: the exponent bits of a
        // power of two.
        let shift = 12_582_912.0 + 127.0;
        let [ln_2, rest] = self.ln_2();
        let (shifted, r) = self.kernel.as_written(|| {
            let shifted = (self * LOG2_E + shift).apart();
            let n = shifted - shift;
            (shifted, (self - n * ln_2).apart() - n * rest)
        });
        let power = (shifted.bitcast(self.ty.bits()) << 23).bitcast(self.ty);
        // The logarithm of the least normal number.
        self.lt(-87.336_54).select(self.literal(0.0), (r.exp_series() + 1.0) * power)
    }

    /// `self exp(a + b)`. `b` must be small.
    pub(super) fn times_exp(self, a: Value<'k>, b: Value<'k>) -> Value<'k> {
        let (r, n) = a.exp_reduced();
        self.fma((r + b).exp_series(), self).scale_by_power_of_two(n)
    }

    /// Half of `exp(self)`. It is infinite only if the half itself is.
    pub(super) fn half_exp(self) -> Value<'k> {
        let (d, n) = self.exp_parts();
        self.is_nan().select(self, (d + 1.0).scale_by_power_of_two(n - 1))
    }

    /// `exp(self) - 1`. It keeps its digits near 0.
    pub fn expm1(self) -> Value<'k> {
        // Below this limit the result is -1.
        let low = self.by_precision(-30.0, -40.0);
        let x = self.lt(low).select(self.literal(low), self);
        let (d, n) = x.exp_parts();
        // (d + 1) 2^n - 1 = (d + (1 - 2^-n)) 2^n
        let rest = (self.literal(1.0) - (-n.min(self.by_precision(100, 1000))).power_of_two()).apart();
        self.is_nan().select(self, (d + rest).scale_by_power_of_two(n))
    }

    /// Two to the power of the value.
    pub fn exp2(self) -> Value<'k> {
        let (low, high) = self.by_precision((-151.0, 129.0), (-1076.0, 1025.0));
        let x = self.lt(low).select(self.literal(low), self);
        let x = x.gt(high).select(self.literal(high), x);
        let (n, integer) = x.round_to_integer();
        self.is_nan().select(self, (x - n).exp2_near_zero().scale_by_power_of_two(integer))
    }

    /// Two to the power of a number from -0.5 to 0.5.
    fn exp2_near_zero(self) -> Value<'k> {
        if self.ty.scalar == Scalar::F64 {
            return (self * LN_2).exp_series() + 1.0;
        }
        let p = self.polynomial(&[
            1.535_336_2e-4,
            1.339_887_5e-3,
            9.618_437e-3,
            5.550_332_5e-2,
            2.402_264_8e-1,
            6.931_472e-1,
        ]);
        self.fma(p, 1.0)
    }

    /// Returns `m` and a whole number `e` with `self = (1 + m) 2^e`. `1 + m` is between the square roots of 1/2 and of
    /// 2.
    pub(super) fn log_parts(self) -> (Value<'k>, Value<'k>) {
        // Subnormal numbers are scaled into the normal range first.
        if self.ty.scalar == Scalar::F64 {
            let tiny = self.lt(f64::MIN_POSITIVE);
            let x = tiny.select(self * 2f64.powi(54), self);
            let least = FRAC_1_SQRT_2.to_bits().cast_signed();
            let shifted = x.bitcast(self.ty.bits()) - least;
            let e = (shifted >> 52).convert(Scalar::F64);
            let m = ((shifted & 0x000f_ffff_ffff_ffff_i64) + least).bitcast(self.ty) - 1.0;
            return (m, tiny.select(e - 54.0, e));
        }
        let bits = self.ty.with_scalar(Scalar::U32);
        let signed = self.ty.with_scalar(Scalar::I32);
        let tiny = self.lt(1.175_494_4e-38);
        let x = tiny.select(self * 8_388_608.0, self);
        let shifted = x.bitcast(bits) - 0x3f35_04f3_u32;
        let e = (shifted.bitcast(signed) >> 23).convert(Scalar::F32);
        let m = ((shifted & 0x007f_ffff_u32) + 0x3f35_04f3_u32).bitcast(self.ty) - 1.0;
        (m, tiny.select(e - 23.0, e))
    }

    /// `(log(1 + self) - self + self^2 / 2) / self^2`, for the `m` of `log_parts`.
    fn log_series(self) -> Value<'k> {
        if self.ty.scalar == Scalar::F64 {
            // log(1 + m) = 2 atanh(s) with s = m / (2 + m). Its first terms are m - m^2 / 2 + s m^2 / 2.
            let t = self.literal(1.0) / (self + 2.0);
            let s = self * t;
            return s * ((s * s).polynomial(&double::LOG) * t * t + 0.5);
        }
        self * self.polynomial(&[
            7.037_684e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_4e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ])
    }

    /// `log(1 + self) + e ln 2`, for the `m` and `e` of `log_parts`.
    pub(super) fn log_of_parts(self, e: Value<'k>) -> Value<'k> {
        let [ln_2, rest] = self.ln_2();
        let z = self * self;
        let y = z.fma(self.log_series(), e * rest).opaque();
        e.fma(ln_2, self + z.fma(-0.5, y))
    }

    /// Returns the logarithm of this value: `computed`, or the one of a special case.
    fn logarithm_is(self, computed: Value<'k>) -> Value<'k> {
        let infinity = self.special(f32::INFINITY);
        let result = self.eq(infinity).select(infinity, computed);
        let result = self.eq(0.0).select(-infinity, result);
        let result = self.lt(0.0).select(self.special(f32::NAN), result);
        self.is_nan().select(self, result)
    }

    /// The natural logarithm.
    pub fn log(self) -> Value<'k> {
        let (m, e) = self.log_parts();
        self.logarithm_is(m.log_of_parts(e))
    }

    /// The logarithm to base 2.
    pub fn log2(self) -> Value<'k> {
        let (m, e) = self.log_parts();
        let z = m * m;
        let y = z.fma(m.log_series(), z * -0.5);
        // Times log2(e), which is 1 plus this rest, added up from the smallest part to the largest.
        let rest = self.by_precision(f64::from(std::f32::consts::LOG2_E), LOG2_E) - 1.0;
        let sum = (y * rest + m * rest).apart() + y;
        self.logarithm_is((sum + m).apart() + e)
    }

    /// `log(1 + self)`. It keeps its digits near 0.
    pub fn log1p(self) -> Value<'k> {
        let sum = (self + 1.0).apart();
        // What the addition has lost, relative to the sum.
        let lost = (self - (sum - 1.0)) / sum;
        let (m, e) = sum.log_parts();
        let near_zero = self.gt(-0.292) & self.lt(0.414);
        let logarithm = near_zero.select(self, m).log_of_parts(near_zero.select(self.literal(0.0), e));
        sum.logarithm_is(near_zero.select(logarithm, logarithm + lost))
    }

    /// Returns the number cut to 12 bits (a double to 26), and the rest of it. Products of cut numbers are exact.
    pub(super) fn split(self) -> [Value<'k>; 2] {
        let kept = self.by_precision(0xffff_f000_i64, -1 << 27);
        let high = (self.bitcast(self.ty.bits()) & kept).bitcast(self.ty);
        [high, (self - high).apart()]
    }

    /// The logarithm to base 2 of a positive number as the sum of two floats, within 2^-29 of itself (of a double,
    /// 2^-64).
    fn log2_in_two(self) -> [Value<'k>; 2] {
        let (f, e) = self.log_parts();
        // log(1 + f) = 2 atanh(q) with q = f / (2 + f) in two parts. The second comes from what the first leaves of f.
        let [q, _] = (f / (f + 2.0)).split();
        let [f_high, f_low] = f.split();
        let left = (f - q * 2.0).apart() - (q * f_high).apart();
        let q_rest = (left.apart() - q * f_low) / (f + 2.0);
        // atanh(q) = q + q^3 (1/3 + q^2/5 + ...). The series ends early, because |q| < 0.172.
        let whole = q + q_rest;
        let z = whole * whole;
        let (q, q_rest, series) = if self.ty.scalar == Scalar::F64 {
            q.atanh_in_three(q_rest)
        } else {
            (q, q_rest, z.polynomial(&[1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0]) * z * whole)
        };
        let [c, c_rest] = self.by_precision(TWO_LOG2_E, double::TWO_LOG2_E);
        let high = (q * c).apart();
        let low = (q_rest + series) * (c + c_rest) + q * c_rest;
        let sum = (e + high).apart();
        let low = (high - (sum - e).apart()).apart() + low;
        let total = (sum + low).apart();
        [total, (low - (total - sum).apart()).apart()]
    }

    /// The inverse hyperbolic tangent of `self + rest`, for up to 0.172, as the sum of three doubles. `self` and the
    /// first of the three have 26 bits.
    fn atanh_in_three(self, rest: Value<'k>) -> (Value<'k>, Value<'k>, Value<'k>) {
        // atanh(x) = x (1 + u) with u = z/3 + z^2 (1/5 + ...) and z = x^2. u is in two parts, too.
        let (z, z_rest) = (self * self, (self + self + rest) * rest);
        let third = (z / 3.0).opaque();
        let third_rest = ((z - third * 2.0) - third) / 3.0;
        let square = z + z_rest;
        let series = square * square * square.polynomial(&double::LOG[..11]) * 0.5 + z_rest / 3.0;
        let [u, u_rest] = third.two_sum(series);
        let [u_high, u_low] = u.split();
        let [sum, lost] = self.two_sum(self * u_high);
        let [high, low] = sum.split();
        (high, low + lost, self * (u_low + (u_rest + third_rest)) + rest * (u + 1.0))
    }

    /// The value to the power of another, as C defines it. 1 to any power is 1, and so is anything to the power of 0.
    /// Negative numbers have only whole powers.
    ///
    /// The logarithm is computed in two floats, because the product multiplies its error. Powers of integers wrap. If
    /// the exponent is negative, they are cut towards zero.
    pub fn pow(self, exponent: Value<'k>) -> Value<'k> {
        if !self.ty.is_float() {
            return self.integer_power(exponent);
        }
        let (x, y) = (self.abs(), exponent);
        let magnitude = x.power_of_positive(y);
        let [zero, one, infinity] = [self.literal(0.0), self.literal(1.0), self.special(f32::INFINITY)];
        let nan = self.special(f32::NAN);
        // If x has no finite logarithm, or y is infinite.
        let endless = x.eq(0.0) | x.eq(infinity) | y.abs().eq(infinity);
        let grows = x.gt(1.0).convert(Scalar::U32).eq(y.gt(0.0).convert(Scalar::U32));
        let magnitude = endless.select(grows.select(infinity, zero), magnitude);
        let magnitude = x.eq(1.0).select(one, magnitude);
        // From 2^24 on all floats are even, from 2^53 on all doubles.
        let whole = y.floor().eq(y);
        let even = self.by_precision(2f64.powi(24), 2f64.powi(53));
        let odd = whole & y.abs().lt(even) & (y.to_integer() & 1).eq(1);
        let result = (self.is_sign_negative() & odd).select(-magnitude, magnitude);
        let result = (self.lt(0.0) & !whole & x.lt(infinity)).select(nan, result);
        let result = (self.is_nan() | y.is_nan()).select(nan, result);
        (self.eq(1.0) | y.eq(0.0)).select(one, result)
    }

    /// The product of the squares that belong to the exponent's bits.
    fn integer_power(self, exponent: Value<'k>) -> Value<'k> {
        let k = self.kernel;
        let one = self.literal(1);
        let (product, square, bits) = (k.var(one), k.var(self), k.var(exponent));
        k.for_range(0, 8 * self.ty.lane().size_in_bytes(), |_| {
            product.set(product.get() * (bits.get() & 1).eq(1).select(square.get(), one));
            square.set(square.get() * square.get());
            bits.set(bits.get() >> 1);
        });
        if self.ty.scalar == Scalar::U32 {
            return product.get();
        }
        // For 1 and -1, the bits of a negative exponent give the right power, too.
        let fraction = exponent.lt(0) & self.ne(1) & self.ne(-1);
        fraction.select(self.literal(0), product.get())
    }

    /// The power of a positive finite number.
    fn power_of_positive(self, y: Value<'k>) -> Value<'k> {
        let [log, log_rest] = self.log2_in_two();
        let ([log_high, log_low], [y_high, y_low]) = (log.split(), y.split());
        let product = (y_high * log_high).apart();
        let rest = y_high * log_low + (y_low * log + y * log_rest);
        // Beyond the limits the result is 0 or infinite, whatever the product is.
        let about = y * log;
        let most = self.by_precision(200.0, 1100.0);
        let limit = about.gt(0.0).select(self.literal(most), -most);
        let outside = about.abs().gt(most);
        let (product, rest) = (outside.select(limit, product), outside.select(self.literal(0.0), rest));
        let (n, integer) = (product + rest).round_to_integer();
        let r = (product - n).apart() + rest;
        r.exp2_near_zero().scale_by_power_of_two(integer)
    }
}
