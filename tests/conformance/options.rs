//! The arguments of the suite: those of `cargo test`.

use clap::Parser;
use libtest_mimic::{Arguments, Trial};

/// `libtest_mimic` takes one filter. The others are taken here, and all are applied here.
#[derive(Parser)]
pub struct Options {
    #[command(flatten)]
    pub harness: Arguments,
    #[arg(value_name = "MORE FILTERS")]
    filters: Vec<String>,
}

impl Options {
    pub fn from_args() -> Self {
        let mut options = Self::parse();
        options.filters.extend(options.harness.filter.take());
        options
    }

    /// Whether every case runs.
    pub fn are_whole(&self) -> bool {
        self.filters.is_empty() && self.harness.skip.is_empty()
    }

    /// The trials whose names match a filter.
    pub fn select(&self, mut trials: Vec<Trial>) -> Vec<Trial> {
        let matches =
            |name: &str, filter: &str| if self.harness.exact { name == filter } else { name.contains(filter) };
        trials
            .retain(|trial| self.filters.is_empty() || self.filters.iter().any(|filter| matches(trial.name(), filter)));
        trials
    }
}
