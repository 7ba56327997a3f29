//! What runs launches on a backend: memory, compiled kernels, and the order of commands.

pub(crate) mod catalogue;
mod cgroup;
mod disk_cache;
pub(crate) mod dump;
pub(crate) mod kernel_cache;
pub(crate) mod launch;
pub(crate) mod pool;
pub(crate) mod profile;
mod recording;
pub(crate) mod runtime;
pub(crate) mod stream;
mod submitter;
