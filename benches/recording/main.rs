//! How long the host takes to record an operation, and how long many small ones take in all, on the best device or the
//! one of `MARQUETRY_DEVICE`.
//!
//! `cargo bench --bench recording` measures all rows, `-- NAME..` those whose names contain one. Figures are medians
//! over rounds, and the device is idle before a round.
//!
//! | rows | what they tell |
//! |---|---|
//! | one operation | [`operations`]: the host's time per operation |
//! | a thousand operations, a step of them | [`chains`]: the host's time, and until the device has done them |
//! | a token of a language model | [`token`]: the same |

mod chains;
#[cfg(feature = "vulkan")]
mod native;
mod operations;
mod token;

use anyhow::Result;
use marquetry::Device;
use std::time::Instant;

/// Returns the median time of `rounds` rounds in microseconds. The device is idle before each. The first round, which
/// compiles kernels, does not count.
fn median_us(device: &Device, rounds: usize, mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..=rounds {
        device.synchronize()?;
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    times.remove(0);
    Ok(median(times))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The rows that were asked for.
struct Wanted(Vec<String>);

impl Wanted {
    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

fn main() -> Result<()> {
    let device = Device::best()?;
    println!("{device}; all times in microseconds");
    let wanted = Wanted(std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect());
    operations::print(&device, &wanted)?;
    chains::print(&device, &wanted)?;
    token::print(&device, &wanted)
}
