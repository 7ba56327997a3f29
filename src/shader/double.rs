//! Coefficients of functions in double precision. The ones of single precision stand beside their functions. Series are
//! Taylor's. All others are interpolated at Chebyshev's points, computed with 60 digits.

/// Returns the inverse factorials of `first`, `first + step` and so on, the last one first. Their signs alternate.
const fn inverse_factorials<const N: usize>(first: usize, step: usize, signs: [f64; 2]) -> [f64; N] {
    let mut coefficients = [0.0; N];
    let (mut factorial, mut number, mut place) = (1.0, 1, 0);
    while place < N {
        while number < first + step * place {
            number += 1;
            factorial *= number as f64;
        }
        coefficients[N - 1 - place] = signs[place % 2] / factorial;
        place += 1;
    }
    coefficients
}

/// `(exp(x) - 1 - x) / x^2`.
pub(super) const EXP: [f64; 12] = inverse_factorials(2, 1, [1.0, 1.0]);
/// `(sin(x) - x) / x^3`, a polynomial of `x^2`.
pub(super) const SIN: [f64; 8] = inverse_factorials(3, 2, [-1.0, 1.0]);
/// `(cos(x) - 1 + x^2 / 2) / x^4`, a polynomial of `x^2`.
pub(super) const COS: [f64; 7] = inverse_factorials(4, 2, [1.0, -1.0]);
/// `(sinh(x) - x) / x^3`, a polynomial of `x^2`.
pub(super) const SINH: [f64; 9] = inverse_factorials(3, 2, [1.0, 1.0]);

/// `(2 atanh(x) / x - 2) / x^2`, a polynomial of `x^2`.
pub(super) const LOG: [f64; 12] = {
    let mut coefficients = [0.0; 12];
    let mut place = 0;
    while place < 12 {
        coefficients[11 - place] = 2.0 / (2 * place + 3) as f64;
        place += 1;
    }
    coefficients
};

/// ln 2 in two parts, the first of 33 bits.
pub(super) const LN_2: [f64; 2] = [0.693_147_180_485_539_1, 7.440_617_110_012_397e-11];
/// pi/2 in four parts, three of them of 33 bits.
pub(super) const FRAC_PI_2: [f64; 4] =
    [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_711_166_5e-21, 8.478_427_660_368_9e-32];
/// 2 / ln 2 in two parts, the first of 26 bits.
pub(super) const TWO_LOG2_E: [f64; 2] = [2.885_390_043_258_667, 3.851_925_982_253_235e-8];

/// `(asin(x) - x) / x^3`, a polynomial of `x^2` from 0 to 0.25.
pub(super) const ASIN: [f64; 14] = [
    0.029_612_011_264_955_12,
    -0.019_241_671_746_743_04,
    0.019_554_513_336_123_378,
    0.003_044_879_909_455_677_3,
    0.009_319_560_794_767_446,
    0.009_621_842_970_100_282,
    0.011_566_459_612_121_669,
    0.013_963_780_012_203_57,
    0.017_352_816_540_325_496,
    0.022_372_157_443_507_22,
    0.030_381_944_475_532_34,
    0.044_642_857_142_551_895,
    0.075_000_000_000_001_18,
    0.166_666_666_666_666_66,
];

/// `(atan(x) - x) / x^3`, a polynomial of `x^2` from 0 to 0.1716.
pub(super) const ATAN: [f64; 12] = [
    0.016_283_572_356_482_59,
    -0.034_568_590_668_606_9,
    0.045_515_165_635_903_104,
    -0.052_304_374_642_516_874,
    0.058_789_267_157_567_26,
    -0.066_664_246_872_465,
    0.076_922_963_639_799_52,
    -0.090_909_087_531_185_94,
    0.111_111_111_051_477_64,
    -0.142_857_142_856_597_48,
    0.199_999_999_999_998_04,
    -0.333_333_333_333_333_3,
];

/// `(tanh(x) - x) / x^3`, a polynomial of `x^2` from 0 to 0.3907.
pub(super) const TANH: [f64; 12] = [
    6.484_104_982_405_479e-6,
    -3.119_892_666_773_487e-5,
    9.256_923_588_512_033e-5,
    -0.000_237_589_688_521_170_1,
    0.000_589_660_360_655_267_1,
    -0.001_455_775_353_209_629_6,
    0.003_592_121_743_695_985_6,
    -0.008_863_235_102_653_483,
    0.021_869_488_518_981_43,
    -0.053_968_253_967_896_36,
    0.133_333_333_333_330_42,
    -0.333_333_333_333_333_3,
];

/// `erf(x) / x - 1`, a polynomial of `x^2` from 0 to 0.861.
pub(super) const ERF: [f64; 12] = [
    -8.300_418_061_687_945e-10,
    1.396_652_134_163_102_9e-8,
    -1.626_045_499_903_583e-7,
    1.645_361_435_709_837e-6,
    -1.492_519_425_336_443_7e-5,
    0.000_120_553_165_870_419_35,
    -0.000_854_832_663_449_944_1,
    0.005_223_977_619_582_137,
    -0.026_866_170_644_609_66,
    0.112_837_916_709_527_25,
    -0.376_126_389_031_837_1,
    0.128_379_167_095_512_6,
];

/// The `k` of the tail of the normal distribution.
pub(super) const NORMAL_TAIL_SHIFT: f64 = 4.0;

/// `exp(t^2 / 2) / u` times the probability that a normally distributed number is above `t`, for `t` from 0 to 39. It
/// is a polynomial of `1 - u` with `u = 2 k / (t + k)`.
pub(super) const NORMAL_TAIL: [f64; 24] = [
    -9.078_024_763_011_974e-11,
    -3.152_624_322_347_592e-10,
    2.397_846_275_466_675e-10,
    2.452_451_357_669_445e-9,
    1.660_099_723_413_791e-9,
    -1.067_605_226_960_640_6e-8,
    -1.937_061_467_780_931e-8,
    3.397_556_620_324_104e-8,
    1.276_942_546_495_127e-7,
    -7.871_207_007_269_779e-8,
    -7.400_216_653_770_128e-7,
    8.958_329_056_526_289e-8,
    4.393_085_756_625_433e-6,
    -2.385_323_099_716_791_6e-7,
    -2.888_686_689_618_237_6e-5,
    1.666_803_905_120_571_7e-5,
    0.000_203_852_307_198_587_64,
    -0.000_434_961_545_924_199_4,
    -0.000_942_523_620_840_848_9,
    0.007_549_571_861_367_07,
    -0.023_315_232_244_957_157,
    0.048_392_175_092_776_82,
    -0.075_987_080_246_486_51,
    0.094_410_641_301_968_94,
];
