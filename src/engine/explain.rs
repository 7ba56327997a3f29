//! Which kernels ran, and what was fused: [`Device::explain`](crate::Device::explain).

use std::fmt;

/// A kernel that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedKernel {
    /// What it computed, with everything that was fused into it: `sum(silu(add(x0, x1)), ..)` adds two tensors, applies
    /// `silu` and sums up. An expression behind the name is applied to the results: `.., mul(x1, x0)`.
    pub name: String,
    /// The sizes of the buffers that it reads, in bytes.
    pub bytes_read: u64,
    /// The sizes of the buffers that it writes, in bytes.
    pub bytes_written: u64,
}

/// The kernels that ran, and what was not fused.
///
/// `Display` prints the kernels in order, with the bytes that each moves, then what was not fused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The device's string, as in `vulkan:0`.
    pub device: String,
    /// The kernels, in the order in which they were launched.
    pub kernels: Vec<ExplainedKernel>,
    /// What ran by itself although something pending needs it, and why.
    pub not_fused: Vec<String>,
}

impl Explanation {
    /// Returns an explanation of nothing yet.
    pub(crate) fn new(device: String) -> Explanation {
        Explanation { device, kernels: Vec::new(), not_fused: Vec::new() }
    }

    /// Returns the bytes that all kernels read and write.
    pub fn bytes_moved(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.bytes_read.saturating_add(kernel.bytes_written)).sum()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>14} {:>14}  kernel", "bytes read", "bytes written")?;
        for ExplainedKernel { name, bytes_read, bytes_written } in &self.kernels {
            writeln!(f, "{bytes_read:>14} {bytes_written:>14}  {name}")?;
        }
        write!(f, "{} kernels on {}, {} bytes moved", self.kernels.len(), self.device, self.bytes_moved())?;
        self.not_fused.iter().try_for_each(|reason| write!(f, "\nnot fused: {reason}"))
    }
}
