//! The environment of the driver: injected faults and other settings.

use crate::ffi::ApiVersion;
use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The prefix of all variables.
const PREFIX: &str = "LEVEL_ZERO_TEST_";

/// The settings, which are read once. The README lists them.
pub struct Settings {
    pub devices: usize,
    pub discrete: bool,
    pub api: Option<ApiVersion>,
    pub slow: Duration,
    pub report: Option<String>,
    pub cache: Option<String>,
    pub optimize: bool,
    /// Fails memory allocations.
    pub out_of_memory: Countdown,
    /// Fails module builds.
    pub build_failure: Countdown,
    /// Loses the device at submissions.
    pub lost: Countdown,
}

/// Counts events from 1, and is due at the given numbers.
pub struct Countdown {
    at: Vec<u64>,
    seen: AtomicU64,
}

impl Countdown {
    fn from_env(name: &str) -> Self {
        let numbers = text(name).unwrap_or_default();
        let at = numbers.split(',').filter(|n| !n.is_empty()).map(|n| parse_number(name, n)).collect();
        Self { at, seen: AtomicU64::new(0) }
    }

    /// Counts an event. True if a fault is due at this event.
    pub fn is_due(&self) -> bool {
        self.at.contains(&(self.seen.fetch_add(1, Ordering::Relaxed) + 1))
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
    text(name).map(|value| parse_number(name, &value))
}

fn parse_number(name: &str, value: &str) -> u64 {
    value.trim().parse().unwrap_or_else(|_| panic!("{PREFIX}{name}={value} is no number"))
}

fn parse_version(version: &str) -> ApiVersion {
    let parts = version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = parts.unwrap_or_else(|| panic!("{PREFIX}API={version} is no version"));
    ApiVersion::new(major, minor)
}
