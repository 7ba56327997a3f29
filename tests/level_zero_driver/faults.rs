//! The driver's environment: what goes wrong on purpose, and other settings.

use crate::ffi::ApiVersion;
use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Prefix of all variables.
const PREFIX: &str = "LEVEL_ZERO_TEST_";

/// The settings, read once. The README lists them.
pub struct Settings {
    pub devices: usize,
    pub discrete: bool,
    pub api: Option<ApiVersion>,
    pub slow: Duration,
    pub report: Option<String>,
    pub cache: Option<String>,
    pub optimize: bool,
    /// Fails one memory allocation.
    pub out_of_memory: Countdown,
    /// Fails one module build.
    pub build_failure: Countdown,
    /// Loses the device at one submission.
    pub lost: Countdown,
}

/// Becomes due once, at the n-th event.
pub struct Countdown {
    at: Option<u64>,
    seen: AtomicU64,
}

impl Countdown {
    fn from_env(name: &str) -> Self {
        Self { at: number(name), seen: AtomicU64::new(0) }
    }

    /// Counts an event; whether it is the one.
    pub fn is_due(&self) -> bool {
        self.at.is_some_and(|at| self.seen.fetch_add(1, Ordering::Relaxed) + 1 == at)
    }
}

pub fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings {
        devices: number("DEVICES").unwrap_or(1) as usize,
        discrete: number("DISCRETE").unwrap_or(0) != 0,
        api: text("API").map(|version| parse_version(&version)),
        slow: Duration::from_millis(number("SLOW_MS").unwrap_or(0)),
        report: text("REPORT"),
        cache: text("CACHE"),
        optimize: number("OPTIMIZE").unwrap_or(0) != 0,
        out_of_memory: Countdown::from_env("OOM_AT"),
        build_failure: Countdown::from_env("BUILD_FAILURE_AT"),
        lost: Countdown::from_env("LOST_AT"),
    });
    &SETTINGS
}

fn text(name: &str) -> Option<String> {
    env::var(format!("{PREFIX}{name}")).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    text(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{PREFIX}{name}={value} is no number")))
}

fn parse_version(version: &str) -> ApiVersion {
    let parts = version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = parts.unwrap_or_else(|| panic!("{PREFIX}API={version} is no version"));
    ApiVersion::new(major, minor)
}
