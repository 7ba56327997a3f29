//! Items that this crate's tests, benches and examples need beyond its API. They may change with every version.

pub use crate::device::open_tuned;
pub use crate::engine::catalogue::catalogue;
pub use crate::engine::runtime::tuning_of;

/// The tuning data.
pub mod tuning {
    pub use crate::tuning::*;
}
