//! [`BackendKind`]: the name of a backend, and device strings that begin with it.

use crate::base::error::{Error, Result};
use std::fmt;

/// The three ways to reach a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BackendKind {
    /// Vulkan 1.2 or newer.
    Vulkan,
    /// WebGPU through `wgpu`: over Vulkan, Metal, Direct3D 12 or a browser.
    WebGpu,
    /// oneAPI Level Zero.
    LevelZero,
}

impl BackendKind {
    /// All backends, also those that are not compiled in.
    pub const ALL: [BackendKind; 3] = [BackendKind::Vulkan, BackendKind::WebGpu, BackendKind::LevelZero];

    /// Returns the name in device strings: `vulkan`, `webgpu`, `level-zero`.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Vulkan => "vulkan",
            BackendKind::WebGpu => "webgpu",
            BackendKind::LevelZero => "level-zero",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses a backend's name. A colon and an index may follow; without them the index is 0.
pub(crate) fn parse_device(text: &str) -> Result<(BackendKind, usize)> {
    let invalid = || Error::InvalidDevice { text: text.into() };
    let (name, index) = text.trim().split_once(':').unwrap_or((text.trim(), "0"));
    let backend = BackendKind::ALL.into_iter().find(|backend| backend.name() == name).ok_or_else(invalid)?;
    Ok((backend, index.parse().map_err(|_| invalid())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_strings() {
        assert_eq!(parse_device("vulkan").unwrap(), (BackendKind::Vulkan, 0));
        assert_eq!(parse_device(" webgpu:12 ").unwrap(), (BackendKind::WebGpu, 12));
        assert_eq!(parse_device("level-zero:1").unwrap(), (BackendKind::LevelZero, 1));
        for wrong in ["", "cuda", "vulkan:", "vulkan:-1", "vulkan:0:0", "Vulkan"] {
            let message = parse_device(wrong).unwrap_err().to_string();
            assert!(message.contains(&format!("`{wrong}`")) && message.contains("vulkan:0"), "{message}");
        }
    }
}
