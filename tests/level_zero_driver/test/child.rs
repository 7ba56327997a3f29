//! Child processes that run scenarios under the test driver, which injects faults and reports leaks per process.

#![allow(dead_code, reason = "each of the tests that share this uses a part of it")]

use libtest_mimic::Failed;
use std::env;
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

/// The variable that names the scenario of a child.
const SCENARIO: &str = "LEVEL_ZERO_TEST_SCENARIO";

/// Returns the scenario that this process must run, if it is a child.
pub fn scenario() -> Option<String> {
    env::var(SCENARIO).ok()
}

/// Returns the path of the library, which cargo builds as an example beside the tests.
pub fn driver() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let target = program.parent().and_then(Path::parent).expect("it is in target/PROFILE/deps");
    let driver = target.join("examples/liblevel_zero_driver.so");
    assert!(driver.exists(), "no {}: run `make test`, or `cargo build --example level_zero_driver`", driver.display());
    driver
}

/// A child process for a scenario.
pub struct Child {
    pub command: Command,
    report: PathBuf,
}

impl Child {
    fn new(scenario: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("level_zero_report_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut command = Command::new(env::current_exe().expect("the path of this program"));
        command.env(SCENARIO, scenario).env("LEVEL_ZERO_TEST_REPORT", &report).env_remove("LEVEL_ZERO_TEST_CACHE");
        // Faults are counted, so earlier runs must not change the number of events.
        command.env("MARQUETRY_CACHE", "").env_remove("LEVEL_ZERO_TEST_CACHE");
        Self { command, report }
    }

    /// A scenario that calls the driver through the loader and its validation layer.
    pub fn through_the_loader(scenario: &str) -> Self {
        let mut child = Self::new(scenario);
        child.command.env("ZE_ENABLE_ALT_DRIVERS", driver()).env_remove("MARQUETRY_LEVEL_ZERO_LIBRARY");
        child.command.env("ZE_ENABLE_VALIDATION_LAYER", "1").env("ZE_ENABLE_PARAMETER_VALIDATION", "1");
        child
    }

    /// A scenario in which the crate opens the driver without the loader.
    pub fn direct(scenario: &str) -> Self {
        let mut child = Self::new(scenario);
        child.command.env("MARQUETRY_LEVEL_ZERO_LIBRARY", driver());
        child
    }

    /// Sets one of the driver's variables.
    pub fn with(mut self, setting: &str, value: &str) -> Self {
        self.command.env(format!("LEVEL_ZERO_TEST_{setting}"), value);
        self
    }

    /// Runs the scenario to its end.
    pub fn run(mut self) -> Result<Ended, Failed> {
        let output = self.command.output()?;
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        let _ = std::fs::remove_file(&self.report);
        let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
        write!(text, "{}", String::from_utf8_lossy(&output.stdout))?;
        Ok(Ended { status: output.status, text, report })
    }
}

/// The output of an ended child.
pub struct Ended {
    status: ExitStatus,
    /// The contents of its stderr and stdout.
    pub text: String,
    report: String,
}

impl Ended {
    /// Fails unless the scenario succeeded.
    pub fn succeeds(self) -> Result<Self, Failed> {
        if self.status.success() { Ok(self) } else { Err(self.failed("the scenario failed")) }
    }

    /// Fails unless the driver reported no mistakes and no leaks. Complaints of the validation layer fail the calls.
    pub fn leaves_nothing(self) -> Result<(), Failed> {
        let clean = !self.report.is_empty() && self.report.lines().all(|line| line.ends_with(" 0"));
        if clean { Ok(()) } else { Err(self.failed("the report is not clean")) }
    }

    /// Fails unless the driver reported this number of mistakes.
    pub fn errors(self, count: usize) -> Result<(), Failed> {
        self.reports(&format!("errors {count}"))
    }

    pub fn reports(&self, line: &str) -> Result<(), Failed> {
        let found = self.report.lines().any(|found| found == line);
        if found { Ok(()) } else { Err(self.failed(&format!("the report lacks `{line}`"))) }
    }

    /// Fails unless a memory fault ended the process and the driver printed this message.
    pub fn faults(self, message: &str) -> Result<(), Failed> {
        let faulted = self.status.signal() == Some(libc::SIGSEGV) && self.text.contains(message);
        if faulted { Ok(()) } else { Err(self.failed(&format!("no fault that says `{message}`"))) }
    }

    fn failed(&self, reason: &str) -> Failed {
        format!("{reason}: {}\n{}\nreport:\n{}", self.status, self.text, self.report).into()
    }
}
