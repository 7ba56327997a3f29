//! What runs launches on a backend: memory, compiled kernels, and the order of commands.

pub(crate) mod capture;
pub(crate) mod catalogue;
mod cgroup;
mod copy_stream;
#[cfg(feature = "disk-cache")]
mod disk_cache;
#[cfg(not(feature = "disk-cache"))]
#[path = "no_disk_cache.rs"]
mod disk_cache;
pub(crate) mod dump;
pub(crate) mod explain;
mod hazards;
mod host_trace;
pub(crate) mod kernel_cache;
pub(crate) mod launch;
pub(crate) mod plan_cache;
pub(crate) mod pool;
pub(crate) mod profile;
pub(crate) mod program;
mod recording;
pub(crate) mod roofline;
pub(crate) mod runtime;
pub(crate) mod staging;
pub(crate) mod stream;
mod submit_thread;
mod submitter;
pub(crate) mod transfer;
mod transfer_threads;
#[cfg(has_backend)]
mod waiter;
