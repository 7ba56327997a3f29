//! What the tests, benches and examples of this crate need beyond its API. It may change with every version.

pub use crate::device::open_tuned;
pub use crate::engine::catalogue::catalogue;
pub use crate::engine::runtime::tuning_of;

/// The tuning data.
pub mod tuning {
    pub use crate::tuning::*;
}
