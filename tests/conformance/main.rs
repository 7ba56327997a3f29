//! The conformance suite: every operation on every device, against an independent reference.
//!
//! A run has two processes. The child runs the trials, with the validation layers switched on, and leaves every kernel
//! that it compiles in a folder. The parent then hands these kernels to every compiler and validator at hand.
//!
//! - `MARQUETRY_TEST_DEVICES=vulkan,webgpu` narrows the run to some devices.
//! - `MARQUETRY_TEST_TIER=full` tries more random shapes, and all cases on all devices. It compiles every kernel for
//!   more of Intel's GPUs.
//! - `MARQUETRY_TEST_PASSED=folder` notes there which kernels the tools have passed. Later runs skip these.
//! - Arguments are those of `cargo test`: filters (a trial runs if it matches one), `--exact`, `--skip`, `--list`,
//!   `--nocapture`, `--test-threads`.

mod captured;
mod cases;
mod compare;
mod compiles;
mod devices;
mod documents;
mod graphs;
mod kernels;
mod layouts;
mod options;
mod passed;
mod report;
mod suite;
mod tolerance;
mod trials;
mod views;

#[path = "../../examples/kernels/ocloc.rs"]
mod ocloc;
#[path = "../reference/mod.rs"]
mod reference;

use options::Options;
use std::process::{Command, ExitCode};

/// Marks the child.
const CHILD: &str = "MARQUETRY_CONFORMANCE_CHILD";

/// Whether the full tier is asked for, not the quick one.
fn full_tier() -> bool {
    match std::env::var("MARQUETRY_TEST_TIER").as_deref() {
        Ok("full") => true,
        Ok("quick") | Err(_) => false,
        Ok(other) => panic!("MARQUETRY_TEST_TIER={other}: the tiers are `quick` and `full`"),
    }
}

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() { run_trials() } else { run_child_and_check_kernels() }
}

fn run_trials() -> ExitCode {
    report::install_logger();
    let options = Options::from_args();
    if !options.harness.list {
        devices::open_all();
    }
    let conclusion = libtest_mimic::run(&options.harness, options.select(trials::trials()));
    if options.harness.list {
        return ExitCode::SUCCESS;
    }
    devices::close();
    report::print_table();
    let compared = captured::were_compared();
    let errors = report::logged_errors();
    if errors > 0 {
        report::complain(format_args!("validation layers or the crate logged {errors} errors, see above"));
    }
    // The pages are about all cases on all devices. PoCL lacks features.
    let whole = options.are_whole() && devices::are_all_selected() && !devices::on_pocl();
    let few_compared = whole && !compared;
    if few_compared {
        report::complain(format_args!("too few captured cases could be compared"));
    }
    let documented = !whole || documents::check();
    if conclusion.has_failed() || errors > 0 || !documented || few_compared {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn run_child_and_check_kernels() -> ExitCode {
    let options = Options::from_args();
    // Other runs may go on at the same time.
    let mut folder = tempfile::Builder::new();
    let mut dump = folder.prefix("kernels-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder can be made");
    let status = std::env::current_exe()
        .and_then(|program| {
            let mut child = Command::new(program);
            child.args(std::env::args_os().skip(1)).env(CHILD, "1");
            child.env("MARQUETRY_VALIDATION", "1").env("MARQUETRY_DUMP", dump.path());
            // Without most optimisations, lavapipe compiles thousands of kernels in less time, and each computes
            // little.
            if !full_tier() && std::env::var_os("MARQUETRY_TUNING").is_none() {
                child.env("GALLIVM_PERF", "nopt");
            }
            child.status()
        })
        .expect("this program can be started again");
    if options.harness.list {
        return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if !status.success() {
        report::complain(format_args!("the trials ended with {status}"));
    }
    let kernels_pass = kernels::check(dump.path());
    if !kernels_pass {
        dump.disable_cleanup(true);
        println!("the kernels stay in {}", dump.path().display());
    }
    // Checks of nothing would pass; only a run of chosen trials may leave nothing to check.
    let [vulkan, opencl, wgsl] = kernels::kernels(dump.path());
    let dumped = !options.are_whole()
        || !(vulkan.is_empty() || opencl.is_empty() || (cfg!(feature = "webgpu") && wgsl.is_empty()));
    if !dumped {
        report::complain(format_args!("the trials left no kernels to check"));
    }
    if status.success() && kernels_pass && dumped { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
