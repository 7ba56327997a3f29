//! The locks of tensors and devices.
//!
//! `MARQUETRY_MODEL_LOCKS=1 cargo test --lib model` replaces them by those of `shuttle`. It runs the threads of a test
//! one at a time, and chooses at every lock which one goes on. So it finds deadlocks, and orders of threads that rarely
//! occur. See `src/model.rs`.

#[cfg(not(model_locks))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(model_locks))]
pub(crate) use std::thread_local;

#[cfg(model_locks)]
pub(crate) use model::{Mutex, MutexGuard};
#[cfg(model_locks)]
pub(crate) use shuttle::thread_local;

#[cfg(model_locks)]
mod model {
    pub(crate) use shuttle::sync::MutexGuard;
    use std::sync::PoisonError;

    /// A lock of `shuttle` with the methods of `parking_lot`.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> From<T> for Mutex<T> {
        fn from(value: T) -> Self {
            Mutex::new(value)
        }
    }
}
