//! Explains a memory fault before it ends the process.

use crate::memory;
use crate::report::print_raw;
use std::ffi::c_void;
use std::fmt::{self, Write};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;

/// The previous handler, which gets the fault next.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
pub fn install() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: a `sigaction` of zeros is valid; the handler has the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut previous = MaybeUninit::zeroed();
            libc::sigaction(libc::SIGSEGV, &action, previous.as_mut_ptr());
            previous.assume_init()
        }
    });
}

extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system hands a valid structure to a handler installed with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    memory::with_allocation_at(address, |allocation| {
        let (offset, size) = (allocation.offset_of(address), allocation.size());
        let mut text = Text::default();
        let inside = offset >= 0 && (offset as usize) < size;
        let _ = if inside {
            let kind = if allocation.is_device_memory() { "device memory" } else { "memory" };
            write!(text, "touched {kind} that no pending command uses: byte {offset} of {size}")
        } else {
            write!(text, "touched byte {offset} of an allocation of {size} bytes")
        };
        print_raw("level zero test driver: memory fault: somebody ");
        print_raw(text.as_str());
        print_raw("\n");
    });
    // Restore the previous handler. The access faults again, and the process ends as without the driver.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: this handler was installed before.
        unsafe { libc::sigaction(libc::SIGSEGV, previous, ptr::null_mut()) };
    }
}

/// A text in fixed memory: a signal handler must not allocate.
struct Text {
    bytes: [u8; 160],
    length: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 160], length: 0 }
    }
}

impl Text {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
