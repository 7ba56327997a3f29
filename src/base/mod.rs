//! What all other rooms use: errors, dtypes, shapes, layouts, numbers and the environment.

pub(crate) mod backend_kind;
pub(crate) mod block_format;
pub(crate) mod clock;
pub(crate) mod dtype;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod features;
pub(crate) mod force;
pub(crate) mod indices;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod number;
pub(crate) mod precision;
pub(crate) mod shape;
pub(crate) mod word;
