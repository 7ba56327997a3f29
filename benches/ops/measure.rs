//! How long the runs of a case take.
//!
//! A device that has been idle is slow for a while: for 0.3 s, an H200 is four to six times slower. So the device is
//! kept busy for a time before anything counts, and nothing but measuring comes between.

use crate::statistics::{median, spread};
use anyhow::{Result, ensure};
use marquetry::{Device, Tensor, TimedCommand};
use std::time::{Duration, Instant};

/// How runs follow each other.
pub enum Work {
    /// Each run for itself. Its number tells which operands to take, so that they may differ from the run before.
    Alone(Run),
    /// Each run reads the result of the one before, so that nothing overlaps.
    Chain { start: Tensor, link: Link },
}

impl Work {
    /// The first result.
    pub fn first(&self) -> marquetry::Result<Tensor> {
        match self {
            Work::Alone(run) => run(0),
            Work::Chain { start, link } => link(0, start),
        }
    }
}

pub type Run = Box<dyn Fn(usize) -> marquetry::Result<Tensor>>;
pub type Link = Box<dyn Fn(usize, &Tensor) -> marquetry::Result<Tensor>>;

/// How long to warm up and to measure.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    pub warm_up: Duration,
    pub time: Duration,
}

/// The median times of a run in seconds, and how far the times spread.
#[derive(Debug, Clone, Copy)]
pub struct Measurement {
    pub device: Option<f64>,
    /// The time of a run among many, without timestamps, which cost more on some devices than on others.
    pub steady: Option<f64>,
    pub wall: f64,
    pub spread: f64,
}

/// With fewer runs, a median means little.
const FEWEST: usize = 5;
/// More runs than these keep the host busy, not the device.
const MOST: usize = 500;

impl Protocol {
    pub fn measure(&self, device: &Device, work: &Work) -> Result<Measurement> {
        match work {
            Work::Alone(run) => self.measure_runs(device, run),
            Work::Chain { start, link } => self.measure_chain(device, start, link),
        }
    }

    fn measure_runs(&self, device: &Device, run: &Run) -> Result<Measurement> {
        let mut number = 0;
        let mut runs = |count: usize| -> Result<()> {
            for _ in 0..count {
                run(number)?.realize()?;
                number += 1;
            }
            Ok(device.synchronize()?)
        };
        let estimate = self.warm_up(&mut runs)?;
        let count = self.count(estimate);
        let device_times: Vec<f64> = match device.info().features.timestamps {
            true => {
                let each = commands(device, count, &mut runs)?;
                each.iter()
                    .map(|commands| commands.iter().map(|command| command.duration().as_secs_f64()).sum())
                    .collect()
            }
            false => Vec::new(),
        };
        let in_a_row = count.div_ceil(FEWEST).max(FEWEST);
        let mut steady = Vec::new();
        for _ in 0..FEWEST {
            let begin = Instant::now();
            runs(in_a_row)?;
            steady.push(begin.elapsed().as_secs_f64() / in_a_row as f64);
        }
        let mut walls = Vec::new();
        for _ in 0..(count / 2).max(3) {
            let begin = Instant::now();
            runs(1)?;
            walls.push(begin.elapsed().as_secs_f64());
        }
        let device = (!device_times.is_empty()).then(|| median(&device_times));
        let spread = spread(if device.is_some() { &device_times } else { &walls });
        Ok(Measurement { device, steady: Some(median(&steady)), wall: median(&walls), spread })
    }

    /// Measures the time of a link in whole chains, which are so long that submitting them does not count. No
    /// timestamps are taken, as they would keep the links apart.
    fn measure_chain(&self, device: &Device, start: &Tensor, link: &Link) -> Result<Measurement> {
        let mut chain = |links: usize| -> Result<()> {
            let mut x = start.clone();
            for number in 0..links {
                x = link(number, &x)?;
                x.realize()?;
            }
            Ok(device.synchronize()?)
        };
        let estimate = self.warm_up(&mut chain)?;
        let links = ((self.time.as_secs_f64() / FEWEST as f64 / estimate) as usize).clamp(16, 4096);
        let mut walls = Vec::new();
        for _ in 0..FEWEST {
            let begin = Instant::now();
            chain(links)?;
            walls.push(begin.elapsed().as_secs_f64() / links as f64);
        }
        Ok(Measurement { device: None, steady: None, wall: median(&walls), spread: spread(&walls) })
    }

    /// Returns how many runs to measure if one takes about this long.
    pub fn count(&self, estimate: f64) -> usize {
        ((self.time.as_secs_f64() / estimate) as usize).clamp(FEWEST, MOST)
    }

    /// Keeps the device busy for as long as runs become faster, and then for the time of the protocol: after a pause,
    /// such as a long compilation, a device may have lowered its clock. Returns about how long a run takes.
    pub fn warm_up(&self, runs: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
        let (mut begin, mut least) = (Instant::now(), f64::INFINITY);
        let mut count = 1;
        loop {
            let bunch = Instant::now();
            runs(count)?;
            let each = bunch.elapsed().as_secs_f64() / count as f64;
            if each < 0.95 * least {
                (begin, least) = (Instant::now(), each);
            }
            if begin.elapsed() >= self.warm_up {
                return Ok(each);
            }
            // With this many, the device does not wait for the host between the runs.
            count = ((0.05 / each) as usize).clamp(1, MOST);
        }
    }
}

/// Returns the commands of each of `count` runs.
pub fn commands(
    device: &Device,
    count: usize,
    runs: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Vec<Vec<TimedCommand>>> {
    let (done, profile) = device.profile(|| runs(count))?;
    done?;
    let per_run = profile.commands.len() / count;
    ensure!(per_run > 0 && profile.commands.len().is_multiple_of(count), "runs differ in their commands");
    Ok(profile.commands.chunks(per_run).map(<[_]>::to_vec).collect())
}
