//! Medians, which a few slow runs do not move.

/// Returns the middle of some numbers; for an even count, the mean of the two in the middle; NaN for none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => sorted[n / 2 - 1].midpoint(sorted[n / 2]),
    }
}

/// Returns the median absolute deviation from the median, as a part of the median.
pub fn spread(numbers: &[f64]) -> f64 {
    let middle = median(numbers);
    let deviations: Vec<f64> = numbers.iter().map(|number| (number - middle).abs()).collect();
    median(&deviations) / middle
}
