//! What a pass of a model will write to a cache.

use super::ATTEND;
use crate::base::error::{Error, Result};
use crate::base::lock::{Mutex, MutexGuard};
use crate::device::Device;
use crate::engine::capture::{Held, Requirement};
use std::sync::Arc;

/// Sequences that follow each other and get equally many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub count: usize,
    /// The tokens of each.
    pub each: usize,
}

impl Run {
    /// Groups neighbouring sequences that get equally many tokens.
    pub fn of_counts(counts: impl IntoIterator<Item = usize>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for each in counts {
            match runs.last_mut() {
                Some(run) if run.each == each => run.count += 1,
                _ => runs.push(Run { count: 1, each }),
            }
        }
        runs
    }
}

/// The tokens that were announced last, and whether a step has written them.
#[derive(Debug, Default)]
pub(super) struct Pass {
    runs: Vec<Run>,
    is_written: bool,
}

impl Pass {
    pub fn set(&mut self, runs: Vec<Run>) {
        *self = Pass { runs, is_written: false };
    }

    pub fn clear(&mut self) {
        self.set(Vec::new());
    }
}

/// The tokens that were announced last. Captured steps share it.
#[derive(Default)]
pub(super) struct Announced(Mutex<Pass>);

impl Announced {
    pub fn lock(&self) -> MutexGuard<'_, Pass> {
        self.0.lock()
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the runs for the layers of a pass. Inside a capture, each run of the step will need the same ones.
    pub fn runs(self: &Arc<Self>, device: &Device) -> Result<Vec<Run>> {
        let runs = self.lock().runs.clone();
        if runs.is_empty() {
            let message = "no tokens were announced; call `extend` before each pass of the model".into();
            return Err(Error::InvalidArgument { op: ATTEND, message });
        }
        if let Some(capture) = device.runtime().capturing() {
            let captured = Captured { announced: self.clone(), runs: runs.clone() };
            if !capture.require(Arc::as_ptr(self).addr(), captured) {
                let message = "other tokens were announced while the step was captured; announce them before".into();
                return Err(Error::InvalidArgument { op: ATTEND, message });
            }
        }
        Ok(runs)
    }
}

/// What a step was captured for: each run writes the tokens that were announced, if they are as many.
struct Captured {
    announced: Arc<Announced>,
    runs: Vec<Run>,
}

impl Requirement for Captured {
    fn sizes(&self) -> Vec<usize> {
        self.runs.iter().flat_map(|run| [run.count, run.each]).collect()
    }

    fn hold(&self) -> Result<Box<dyn Held + '_>> {
        let pass = self.announced.lock();
        let mistake = |message| Err(Error::InvalidArgument { op: "run", message });
        if pass.is_written || pass.runs.is_empty() {
            return mistake("the cache expects no tokens; call `extend` before each run of the step".into());
        }
        if pass.runs != self.runs {
            let show = |runs: &[Run]| {
                let runs: Vec<_> = runs.iter().map(|run| format!("{} x {}", run.count, run.each)).collect();
                runs.join(" + ")
            };
            return mistake(format!(
                "the step was captured for other tokens of its cache than were announced: {} (sequences x tokens), not \
                 {}",
                show(&self.runs),
                show(&pass.runs)
            ));
        }
        Ok(Box::new(pass))
    }
}

/// As long as it is held, nobody announces other tokens.
impl Held for MutexGuard<'_, Pass> {
    fn done(&mut self) {
        self.is_written = true;
    }
}
