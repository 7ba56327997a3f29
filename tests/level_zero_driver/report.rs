//! Mistakes of the application, and leaks. The report is printed when the process ends.

use crate::ffi::ResultCode;
use crate::{faults, handles, memory};
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::sync::Once;

static MISUSES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records a mistake of the application.
pub fn note(message: impl Into<String>) {
    let message = message.into();
    eprintln!("level zero test driver: {message}");
    MISUSES.lock().push(message);
}

/// Records a mistake, and returns the result code for the call.
pub fn misuse(code: ResultCode, message: impl Into<String>) -> ResultCode {
    note(message);
    code
}

/// Registers the report, which is written when the process ends.
pub fn at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        stay_loaded();
        // SAFETY: `write_report` may be called at any time.
        unsafe { libc::atexit(write_report) };
    });
}

/// Keeps the library in memory even if the loader closes it, because its threads may still run.
fn stay_loaded() {
    // SAFETY: `dladdr` fills the structure. All its fields may be zero before.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(stay_loaded as *const libc::c_void, &mut info);
        info.dli_fname
    };
    // SAFETY: the path of a library that is loaded.
    unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
}

extern "C" fn write_report() {
    let misuses = MISUSES.lock();
    let mut live = handles::live_counts();
    live.insert(0, ("allocations", memory::live_count()));
    let clean = misuses.is_empty() && live.iter().all(|(_, count)| *count == 0);

    let mut text = String::new();
    for (kind, count) in live {
        let _ = writeln!(text, "live {kind} {count}");
    }
    let _ = writeln!(text, "errors {}", misuses.len());
    for misuse in misuses.iter() {
        let _ = writeln!(text, "error: {misuse}");
    }
    if !clean {
        eprint!("level zero test driver, at exit:\n{text}");
    }
    if let Some(path) = &faults::settings().report {
        let written = std::fs::write(path, text);
        if let Err(error) = written {
            eprintln!("level zero test driver: cannot write the report to {path}: {error}");
        }
    }
}

/// Writes to stderr from a signal handler, which must not allocate.
pub fn print_raw(text: &str) {
    // SAFETY: the bytes are valid, and `write` may be called from a signal handler.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
