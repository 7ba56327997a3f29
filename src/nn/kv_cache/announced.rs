//! What a pass of a model will write to a cache.

use super::ATTEND;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::device::Device;
use std::sync::Arc;

/// Sequences that follow each other and get equally many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub count: usize,
    /// The tokens of each.
    pub each: usize,
}

impl Run {
    /// Returns the runs of sequences that get so many tokens.
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
struct Pass {
    runs: Vec<Run>,
    is_written: bool,
}

/// The tokens that were announced last. Captured steps share it, and check it before each run.
#[derive(Debug, Default)]
pub(super) struct Announced(Mutex<Pass>);

impl Announced {
    pub fn set(&self, runs: Vec<Run>) {
        *self.0.lock() = Pass { runs, is_written: false };
    }

    /// Returns the runs for the layers of a pass. Inside a capture, each run of the step will need the same ones.
    pub fn runs(self: &Arc<Self>, device: &Device) -> Result<Vec<Run>> {
        let runs = self.0.lock().runs.clone();
        if runs.is_empty() {
            let message = "no tokens were announced; call `extend` before each pass of the model".into();
            return Err(Error::InvalidArgument { op: ATTEND, message });
        }
        if let Some(capture) = device.runtime().capturing() {
            let (announced, captured) = (self.clone(), runs.clone());
            capture.require(Arc::as_ptr(self).addr(), move || announced.write(&captured));
        }
        Ok(runs)
    }

    /// Notes that a step writes the tokens, if they are such as it was captured for.
    fn write(&self, captured: &[Run]) -> Result<()> {
        let mut pass = self.0.lock();
        let mistake = |message| Err(Error::InvalidArgument { op: "run", message });
        if pass.is_written {
            return mistake("the step has written the tokens of its cache; call `extend` before each run".into());
        }
        if pass.runs != captured {
            let show = |runs: &[Run]| {
                let runs: Vec<_> = runs.iter().map(|run| format!("{} x {}", run.count, run.each)).collect();
                runs.join(" + ")
            };
            return mistake(format!(
                "the step was captured for other tokens of its cache than were announced: {} (sequences x tokens), not \
                 {}",
                show(captured),
                show(&pass.runs)
            ));
        }
        pass.is_written = true;
        Ok(())
    }
}
