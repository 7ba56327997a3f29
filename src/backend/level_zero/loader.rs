//! The library: found, loaded and initialised once per process.

use super::ffi::*;
use crate::backend::{fork, registry};
use crate::base::backend_kind::BackendKind;
use crate::base::environment::{self, LEVEL_ZERO_LIBRARY};
use crate::base::error::{Error, Result};
use libloading::Library;
use parking_lot::Mutex;
use std::ffi::{c_char, c_void};
use std::fmt::Display;
use std::path::Path;
use std::sync::OnceLock;

/// The name of the system's loader.
const LOADER: &str = if cfg!(windows) { "ze_loader.dll" } else { "libze_loader.so.1" };

/// Why a child process has no devices.
const FORKED: &str = "it was loaded before this process was forked, and its drivers do not survive a fork; \
     fork before the first device is opened, or have the child execute a program";

/// Declares the table of functions.
macro_rules! table {
    (
        required { $($symbol:ident => $name:ident($($parameter:ident: $ty:ty),*);)* }
        optional { $($newer:ident => $newer_name:ident($($newer_parameter:ident: $newer_ty:ty),*);)* }
    ) => {
        /// The functions of the library. Those that older libraries lack are optional.
        #[allow(dead_code, reason = "the declarations are shared with the test driver, which has all of them")]
        pub(super) struct Api {
            $(pub $name: unsafe extern "C" fn($($ty),*) -> ResultCode,)*
            $(pub $newer_name: Option<unsafe extern "C" fn($($newer_ty),*) -> ResultCode>,)*
        }

        impl Api {
            /// Looks up all functions. Fails with the name of a missing one.
            fn load(library: &Library) -> Result<Api, &'static str> {
                // SAFETY: here and below, the symbol is a function of the type that the specification gives it.
                $(let $name = unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) };)*
                // SAFETY: see above.
                $(let $newer_name = unsafe { library.get(concat!(stringify!($newer), "\0").as_bytes()) };)*
                Ok(Api {
                    $($name: *$name.map_err(|_| stringify!($symbol))?,)*
                    $($newer_name: $newer_name.ok().map(|function| *function),)*
                })
            }
        }
    };
}
for_each_function!(table);

/// The library, ready to be asked for devices. It stays loaded until the process ends.
pub(super) struct Loaded {
    /// Its functions.
    pub api: Api,
    /// Its drivers.
    pub drivers: Vec<DriverHandle>,
    _library: Library,
}

/// Returns the library. The first call that succeeds loads it. A child of the process inherits the library and cannot
/// load it again, but the child lacks what the library's drivers have started.
pub(super) fn shared() -> Result<&'static Loaded> {
    static SHARED: OnceLock<(u32, Loaded)> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOADING.lock();
    let (process, loaded) = match SHARED.get() {
        Some(shared) => shared,
        None => load().map(|loaded| SHARED.get_or_init(|| (fork::process(), loaded)))?,
    };
    if *process == fork::process() { Ok(loaded) } else { Err(unavailable(FORKED)) }
}

/// Returns the error for a machine on which Level Zero cannot be used.
pub(super) fn unavailable(reason: impl Display) -> Error {
    registry::unavailable(BackendKind::LevelZero, reason)
}

/// Returns the error for a machine without a working loader or driver. It says how to get one.
fn no_driver(problem: impl Display) -> Error {
    registry::no_driver(BackendKind::LevelZero, problem)
}

/// Converts a code to a result.
pub(super) fn ok(code: ResultCode) -> Result<(), ResultCode> {
    if code == ResultCode::SUCCESS { Ok(()) } else { Err(code) }
}

/// Asks for a list as this interface wants it: first for its length, then for its items.
pub(super) fn list_of<T: Clone>(empty: T, ask: impl Fn(*mut u32, *mut T) -> ResultCode) -> Result<Vec<T>, ResultCode> {
    let mut count = 0;
    ok(ask(&mut count, std::ptr::null_mut()))?;
    let mut list = vec![empty; count as usize];
    if count > 0 {
        ok(ask(&mut count, list.as_mut_ptr()))?;
    }
    list.truncate(count as usize);
    Ok(list)
}

fn load() -> Result<Loaded> {
    // A user may name another loader, or a driver that exports the interface.
    let named = environment::settings().level_zero_library.as_deref();
    let path = named.unwrap_or(LOADER.as_ref());
    let shown = Path::new(path).display();
    // SAFETY: loading the library runs its initialisers, which is what a Level Zero program asks for.
    let library = unsafe { Library::new(path) }.map_err(|error| match named {
        Some(_) => no_driver(format_args!(
            "{LEVEL_ZERO_LIBRARY} names a library that cannot be loaded: {error}; unset it to use the loader"
        )),
        None => no_driver(format_args!("no Level Zero loader: {error}")),
    })?;
    let api = Api::load(&library).map_err(|symbol| {
        unavailable(format_args!("{symbol} is missing from {shown}: the loader is too old, 1.4 or newer is needed"))
    })?;
    let drivers = drivers(&api)?;
    if drivers.is_empty() {
        return Err(no_driver(format_args!("{shown} finds no driver")));
    }
    Ok(Loaded { api, drivers, _library: library })
}

/// Initialises the drivers, and returns them. Uses the newer function if it is there and works.
fn drivers(api: &Api) -> Result<Vec<DriverHandle>> {
    if let Some(init_drivers) = api.init_drivers {
        // All bits: drivers of all types.
        let mut desc = InitDriverTypeDesc { flags: InitDriverTypeFlags(u32::MAX), ..Default::default() };
        let desc: *mut _ = &mut desc;
        // SAFETY: the pointers are valid for the call; the list has room for `count` handles.
        let found = list_of(DriverHandle::NULL, |count, list| unsafe { init_drivers(count, list, desc) });
        match found {
            Ok(drivers) if !drivers.is_empty() => return Ok(drivers),
            Ok(_) => {}
            Err(code) => log::debug!("Level Zero: zeInitDrivers failed: {code}"),
        }
    }
    let failed = |call| move |code| no_driver(format_args!("{call} failed: {code}"));
    // SAFETY: the library is loaded.
    ok(unsafe { (api.init)(InitFlags::default()) }).map_err(failed("zeInit"))?;
    // SAFETY: initialised, and the list has room for `count` handles.
    let found = list_of(DriverHandle::NULL, |count, list| unsafe { (api.driver_get)(count, list) });
    found.map_err(failed("zeDriverGet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_asked_for_twice() {
        let ask = |count: *mut u32, list: *mut u8| {
            // SAFETY: `list_of` gives a valid pointer, and a list of the length that it was told.
            unsafe {
                if list.is_null() {
                    *count = 3;
                } else {
                    // One item has gone since the first call.
                    *count = 2;
                    list.copy_from_nonoverlapping([7, 8].as_ptr(), 2);
                }
            }
            ResultCode::SUCCESS
        };
        assert_eq!(list_of(0, ask).unwrap(), [7, 8]);
        assert_eq!(list_of(0u8, |_, _| ResultCode::SUCCESS).unwrap(), [0; 0]);
        assert!(list_of(0u8, |_, _| ResultCode::ERROR_UNINITIALIZED).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_library_without_the_functions_is_told_by_the_first_one() {
        let library = Library::from(libloading::os::unix::Library::this());
        assert_eq!(Api::load(&library).err(), Some("zeInit"));
    }
}
