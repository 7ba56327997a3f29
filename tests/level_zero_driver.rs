//! Tests of the Level Zero test driver itself: it computes, and it finds mistakes.
//!
//! Each test starts this program again with a scenario from `scenarios.rs` and an environment, because a fault ends a
//! process, and reports are written at the end of a process. Scenarios use the real loader with its validation layer,
//! or open the driver directly.

#[path = "../src/backend/level_zero/ffi.rs"]
mod ffi;

#[path = "level_zero_driver/test/child.rs"]
mod child;
#[path = "level_zero_driver/test/client.rs"]
mod client;
#[path = "level_zero_driver/test/scenarios.rs"]
mod scenarios;

use child::{Child, driver};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(name) = child::scenario() {
        scenarios::run(&name);
        return ExitCode::SUCCESS;
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        trial("loader::adds_vectors", || loader("add_vectors").run()?.succeeds()?.leaves_nothing()),
        trial("loader::describes_the_device", || loader("describe").run()?.succeeds()?.leaves_nothing()),
        trial("loader::subgroups", || loader("subgroups").run()?.succeeds()?.leaves_nothing()),
        trial("loader::copies_and_fills", || loader("copy_and_fill").run()?.succeeds()?.leaves_nothing()),
        trial("loader::orders_by_events", || loader("events").run()?.succeeds()?.leaves_nothing()),
        trial("loader::immediate_lists", || loader("immediate").run()?.succeeds()?.leaves_nothing()),
        trial("loader::cached_modules", cache_is_used),
        trial("loader::native_binaries", || loader("native_binary").run()?.succeeds()?.leaves_nothing()),
        trial("direct::adds_vectors", || direct("add_vectors").run()?.succeeds()?.leaves_nothing()),
        trial("direct::lists_in_order", || direct("in_order").run()?.succeeds()?.leaves_nothing()),
        trial("direct::older_version", || direct("older_version").with("API", "1.3").run()?.succeeds()?.errors(1)),
        trial("traps::missing_barrier", || loader("missing_barrier").run()?.succeeds()?.leaves_nothing()),
        trial("traps::missing_barrier_between_lists", || {
            loader("missing_barrier_between_lists").run()?.succeeds()?.leaves_nothing()
        }),
        trial("traps::kernel_overrun", || {
            loader("overrun").run()?.faults("touched byte 4096 of an allocation of 4096")
        }),
        trial("traps::small_overrun", || loader("small_overrun").run()?.succeeds()?.errors(1)),
        trial("traps::host_touch", || loader("host_touch").run()?.faults("touched device memory")),
        trial("traps::host_touch_after", || loader("host_touch_after").run()?.faults("touched device memory")),
        trial("traps::host_touch_beside", || {
            loader("host_touch_beside").with("SLOW_MS", "2000").run()?.faults("touched device memory")
        }),
        trial("traps::copy_out_of_bounds", || loader("copy_out_of_bounds").run()?.succeeds()?.errors(1)),
        trial("traps::use_after_destroy", || loader("use_after_destroy").run()?.succeeds()?.errors(4)),
        trial("traps::freed_while_pending", || {
            loader("freed_while_pending").with("SLOW_MS", "100").run()?.succeeds()?.errors(1)
        }),
        trial("traps::leaks", leaks_are_reported),
        trial("faults::no_devices", || loader("no_devices").with("DEVICES", "0").run()?.succeeds()?.leaves_nothing()),
        trial("faults::two_devices", || loader("two_devices").with("DEVICES", "2").run()?.succeeds()?.leaves_nothing()),
        trial("faults::discrete", || loader("discrete").with("DISCRETE", "1").run()?.succeeds()?.leaves_nothing()),
        trial("faults::out_of_memory", || {
            loader("out_of_memory").with("OOM_AT", "2").run()?.succeeds()?.leaves_nothing()
        }),
        trial("faults::build_failure", || {
            loader("build_failure").with("BUILD_FAILURE_AT", "2").run()?.succeeds()?.leaves_nothing()
        }),
        trial("faults::lost_device", || loader("lost_device").with("LOST_AT", "2").run()?.succeeds()?.leaves_nothing()),
        trial("faults::slow_device", || {
            loader("slow_device").with("SLOW_MS", "50").run()?.succeeds()?.leaves_nothing()
        }),
    ]
}

fn trial(name: &str, check: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, check)
}

/// The second run finds the module that the first run compiled. A damaged file does no harm.
fn cache_is_used() -> Result<(), Failed> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("level-zero-cache");
    let _ = std::fs::remove_dir_all(&folder);
    let run = || loader("add_vectors").with("CACHE", &folder.to_string_lossy()).run()?.succeeds()?.leaves_nothing();
    run()?;
    let files: Vec<_> = std::fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    assert_eq!(files.len(), 1, "{files:?}");
    let written = std::fs::metadata(files[0].path())?.modified()?;
    run()?;
    assert_eq!(std::fs::metadata(files[0].path())?.modified()?, written, "compiled again");
    std::fs::write(files[0].path(), b"ZETESTDR and nothing that makes sense")?;
    run()
}

fn leaks_are_reported() -> Result<(), Failed> {
    let ended = loader("leaks").run()?.succeeds()?;
    for line in ["live allocations 1", "live kernels 1", "live modules 1", "live contexts 1", "live events 0"] {
        ended.reports(line)?;
    }
    Ok(())
}

/// A scenario through the loader and its validation layer.
fn loader(name: &'static str) -> Child {
    let mut child = Child::through_the_loader(name);
    child.command.env(client::LIBRARY, "libze_loader.so.1");
    child
}

/// A scenario that opens the driver directly.
fn direct(name: &'static str) -> Child {
    let mut child = Child::direct(name);
    child.command.env(client::LIBRARY, driver());
    child
}
