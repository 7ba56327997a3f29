//! Trigonometric functions and their inverses, within 3 ulp. Coefficients and ranges are from the Cephes library (S.
//! Moshier, 1992, single precision). The ones of doubles are in `double.rs`.

use super::double;
use super::types::Scalar;
use super::value::Value;
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, PI};

impl<'k> Value<'k> {
    /// Returns the nearest multiple of pi/2, modulo 4, and the angle from there, for magnitudes up to 10,000.
    fn quadrant(self) -> (Value<'k>, Value<'k>) {
        // pi/2 is in four parts, so that the products are exact and a tiny angle keeps its digits.
        let n = (self * FRAC_2_PI).round();
        if self.ty.scalar == Scalar::F64 {
            let [a, b, c, d] = double::FRAC_PI_2;
            let [r, lost] = n.fma(-a, self).opaque().two_sum(n * -b);
            let [r, more] = r.two_sum(n * -c);
            return (n.to_integer() & 3, r + n.fma(-d, more + lost));
        }
        let r = n.fma(-1.570_312_5, self).opaque();
        let r = n.fma(-4.837_513e-4, r).opaque();
        let r = n.fma(-7.549_533_6e-8, r).opaque();
        (n.convert(Scalar::I32) & 3, n.fma(-2.563_344e-12, r))
    }

    /// Sine and cosine of an angle from -pi/4 to pi/4.
    fn sin_cos_near_zero(self) -> (Value<'k>, Value<'k>) {
        let z = self * self;
        let sine = self.by_precision(&[-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1][..], &double::SIN);
        let cosine = self.by_precision(&[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2][..], &double::COS);
        let sine = (self * z).fma(z.polynomial(sine), self);
        (sine, (z * z).fma(z.polynomial(cosine), z.fma(-0.5, 1.0)))
    }

    /// Sine and cosine of an angle in radians, for magnitudes up to 10,000.
    pub fn sin_cos(self) -> (Value<'k>, Value<'k>) {
        let (quadrant, r) = self.quadrant();
        let (sine, cosine) = r.sin_cos_near_zero();
        let odd = (quadrant & 1).eq(1);
        let (s, c) = (odd.select(cosine, sine), odd.select(sine, cosine));
        (quadrant.ge(2).select(-s, s), (quadrant.eq(1) | quadrant.eq(2)).select(-c, c))
    }

    /// The tangent of an angle in radians, for magnitudes up to 10,000.
    pub fn tan(self) -> Value<'k> {
        let (quadrant, r) = self.quadrant();
        if self.ty.scalar == Scalar::F64 {
            let odd = (quadrant & 1).eq(1);
            let (sine, cosine) = r.sin_cos_near_zero();
            return odd.select(-cosine, sine) / odd.select(sine, cosine);
        }
        let z = r * r;
        let p =
            z.polynomial(&[9.385_402e-3, 3.119_922_4e-3, 2.443_013_5e-2, 5.341_128e-2, 1.333_88e-1, 3.333_315_7e-1]);
        let tangent = (r * z).fma(p, r);
        (quadrant & 1).eq(1).select(self.literal(-1.0) / tangent, tangent)
    }

    /// The arc sine of a number from -0.5 to 0.5.
    fn asin_near_zero(self) -> Value<'k> {
        let z = self * self;
        let single = [4.216_32e-2, 2.418_131e-2, 4.547_002_6e-2, 7.495_300_3e-2, 1.666_675_2e-1];
        let p = z.polynomial(self.by_precision(&single, &double::ASIN));
        (self * z).fma(p, self)
    }

    /// The arc sine. It is NaN outside of -1 to 1.
    pub fn asin(self) -> Value<'k> {
        let a = self.abs();
        let outer = a.gt(0.5);
        // asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2))
        let arc = outer.select(((self.literal(1.0) - a) * 0.5).sqrt(), a).asin_near_zero();
        let result = outer.select(arc.fma(-2.0, FRAC_PI_2), arc).copy_sign(self);
        a.le(1.0).select(result, self.special(f32::NAN))
    }

    /// The arc cosine. It is NaN outside of -1 to 1.
    pub fn acos(self) -> Value<'k> {
        let a = self.abs();
        let outer = a.gt(0.5);
        let arc = outer.select(((self.literal(1.0) - a) * 0.5).sqrt(), self).asin_near_zero();
        let twice = arc * 2.0;
        let outside = self.lt(0.0).select(self.literal(PI) - twice, twice);
        let result = outer.select(outside, self.literal(FRAC_PI_2) - arc);
        a.le(1.0).select(result, self.special(f32::NAN))
    }

    /// The arc tangent.
    pub fn atan(self) -> Value<'k> {
        let a = self.abs();
        // Beyond tan(3 pi / 8), and beyond tan(pi / 8).
        let (large, middle) = (a.gt(2.414_213_7), a.gt(0.414_213_57));
        let numerator = large.select(a.literal(-1.0), a - 1.0);
        let ratio = numerator / large.select(a, a + 1.0);
        let (x, start) = (middle.select(ratio, a), large.select(a.literal(FRAC_PI_2), FRAC_PI_4));
        let z = x * x;
        let single = [8.053_744_5e-2, -1.387_768_6e-1, 1.997_771_1e-1, -3.333_295e-1];
        let p = z.polynomial(self.by_precision(&single, &double::ATAN));
        let arc = (x * z).fma(p, x);
        let result = middle.select(start + arc, arc).copy_sign(self);
        self.is_nan().select(self, result)
    }

    /// The angle of the point (`x`, `self`) from the x axis, from -pi to pi.
    pub fn atan2(self, x: Value<'k>) -> Value<'k> {
        let (a, b) = (self.abs(), x.abs());
        let steep = a.gt(b);
        let (small, large) = (steep.select(b, a), steep.select(a, b));
        // On the diagonal the ratio is 1, also if both are infinite. At the origin the angle is the one of the axis.
        let ratio = a.eq(b).select(a.literal(1.0), small.divide(large));
        let arc = large.eq(0.0).select(a.literal(0.0), ratio).atan();
        let arc = steep.select(a.literal(FRAC_PI_2) - arc, arc);
        let arc = x.is_sign_negative().select(a.literal(PI) - arc, arc).copy_sign(self);
        let arc = x.is_nan().select(x, arc);
        self.is_nan().select(self, arc)
    }
}
