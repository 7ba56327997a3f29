//! Threefry-2x32 with 20 rounds: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.

/// Returns two words of random bits for a key and a counter.
pub fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let rotations = [13, 15, 26, 6, 17, 29, 16, 24];
    let mut x = [counter[0].wrapping_add(schedule[0]), counter[1].wrapping_add(schedule[1])];
    for round in 0..20 {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(rotations[round % 8]) ^ x[0];
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            x[0] = x[0].wrapping_add(schedule[injection % 3]);
            x[1] = x[1].wrapping_add(schedule[(injection + 1) % 3]).wrapping_add(injection as u32);
        }
    }
    x
}

/// The random bits of the first `count` elements of the `sequence`-th random tensor after seeding.
pub fn words(seed: u64, sequence: u32, count: usize) -> Vec<u32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let pairs = (0..count.div_ceil(2)).flat_map(|pair| threefry(key, [pair as u32, sequence]));
    pairs.take(count).collect()
}

/// The random bits of elements with 64 bits each, lower word first.
pub fn wide_words(seed: u64, sequence: u32, count: usize) -> Vec<u64> {
    let words = words(seed, sequence, 2 * count);
    words.chunks(2).map(|pair| u64::from(pair[0]) | (u64::from(pair[1]) << 32)).collect()
}

/// Turns 32 random bits into a uniform number in `[0, 1)`.
pub fn uniform(bits: u32) -> f64 {
    f64::from(bits >> 8) / 16_777_216.0
}

/// Turns 32 random bits into a normally distributed number.
pub fn normal(bits: u32) -> f64 {
    let odd = f64::from((bits >> 9) * 2 + 1) / 8_388_608.0 - 1.0;
    std::f64::consts::SQRT_2 * super::functions::inverse_erf(odd)
}

/// Turns 32 random bits into a number of the Gumbel distribution.
pub fn gumbel(bits: u32) -> f64 {
    let odd = f64::from((bits >> 9) * 2 + 1) / 16_777_216.0;
    -(-odd.ln()).ln()
}

/// Turns 32 random bits into one of the `count` integers from `first` on.
pub fn integer(bits: u32, first: i64, count: u64) -> f64 {
    (first + ((u64::from(bits) * count) >> 32) as i64) as f64
}

/// Turns 64 random bits into one of the `count` integers from `first` on.
pub fn wide_integer(bits: u64, first: i64, count: u64) -> i64 {
    first.wrapping_add_unsigned(((u128::from(bits) * u128::from(count)) >> 64) as u64)
}
